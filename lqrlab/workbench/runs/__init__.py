"""Headless notebooks: the session of one, the pipeline, sweeps, reports."""
