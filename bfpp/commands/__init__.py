"""The commands, one module each: `add_arguments` and `run`."""
