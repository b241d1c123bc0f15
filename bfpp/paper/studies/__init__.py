"""Studies that go on from the paper: the hybrid, zero bubble, what to do next."""
