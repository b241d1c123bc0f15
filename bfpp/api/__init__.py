"""The calls that a user makes from Python: predict, train, search, sweep, explain."""
