"""Lowering and checker, against second implementations that are written apart."""
