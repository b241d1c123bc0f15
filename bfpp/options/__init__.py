"""Options of the command line, shared by its commands."""
