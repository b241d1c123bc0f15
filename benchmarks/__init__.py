"""Measurements of speed and accuracy, which `python -m benchmarks` repeats."""
