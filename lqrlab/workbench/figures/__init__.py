"""Plots, tables, drawings that move, cards."""
