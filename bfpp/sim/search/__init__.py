"""Search of configurations: enumerate, bound, simulate, rank."""
