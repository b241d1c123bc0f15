"""torchtitan: an experiment as settings, and settings as an experiment."""
