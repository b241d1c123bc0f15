"""How fast it is: measurements that `python -m benchmarks` repeats."""
