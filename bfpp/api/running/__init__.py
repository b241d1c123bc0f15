"""Runs that train: the job that options mean, its memory, and training from Python."""
