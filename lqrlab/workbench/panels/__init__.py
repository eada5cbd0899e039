"""Panels for a person at a notebook; with nobody there, the same figure stands still."""
