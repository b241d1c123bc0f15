"""Optimizers, weight updates, loss scaling and NaN checks."""
