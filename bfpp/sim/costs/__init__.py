"""Prices of tasks: abstract, measured, or of a model on a cluster."""
