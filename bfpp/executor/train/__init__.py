"""Training jobs: connect ranks, train steps, measure timelines."""
