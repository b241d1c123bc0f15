"""The `bfpp` command, as a script and as `python -m bfpp`.

Imports take most of a second, in which Ctrl-C ends it like later.
"""

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from bfpp.command_line import main as run

        return run()
    except KeyboardInterrupt:
        print("bfpp: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
