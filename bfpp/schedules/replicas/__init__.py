"""Replicas that differ: the graph of each, and where their tasks meet."""
