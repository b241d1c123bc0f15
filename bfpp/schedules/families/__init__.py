"""The schedules: one rule a file, and the registry of their names."""
