"""Where a learner's batches come from."""
