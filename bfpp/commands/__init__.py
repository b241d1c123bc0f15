"""The commands, one module each: `add_arguments` and `run`.

`bfpp.terminal.command_table` lists them, and imports the one that is asked for.
"""
