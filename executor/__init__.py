"""Runs the task graph for real: one process per pipeline rank and replica."""
