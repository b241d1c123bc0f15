"""The front door: the command line, and the names that a user imports."""
