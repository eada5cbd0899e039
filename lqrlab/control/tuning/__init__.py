"""Weights from design specifications: gradient descent through the design, and the limits of any controller."""
