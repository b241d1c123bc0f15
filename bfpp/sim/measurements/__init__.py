"""Measured runs and kernels: published tables, fit, calibration, validation."""
