"""Robust control of one plant, on the host: H∞ and H2 synthesis, loop shaping, model reduction."""
