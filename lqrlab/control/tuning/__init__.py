"""Weights from design specifications, by gradients."""
