"""Notebooks that run with nobody there: the session of one, the pipeline, sweeps, reports."""
