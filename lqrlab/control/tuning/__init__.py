"""Weights from design specifications: gradient descent through the design, and what no controller can do."""
