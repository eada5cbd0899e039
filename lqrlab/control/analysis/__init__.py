"""What a linear loop is like: stability margins, norms, step responses, controllability."""
