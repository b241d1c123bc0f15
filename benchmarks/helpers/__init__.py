"""Shared by benchmarks and tests: medians and tables, small models, programs and processes."""
