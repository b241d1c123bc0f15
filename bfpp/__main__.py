"""The `bfpp` command, as a script and as `python -m bfpp`.

Imports take most of a second, in which Ctrl-C ends it like later. A command that searches has
workers, which begin with as many: their server starts first, and is ended if it is not needed.
"""

import sys

INTERRUPTED = 130

SEARCHES = {"search", "tradeoff"}
ALONE = {"-h", "--help", "--executor"}
"""Options with which a search needs no workers of its own."""

TRAINS = {"calibrate", "export", "measure", "run"}
"""Commands that need torch, which may share numpy's BLAS, as in conda-forge's builds."""


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        if not _searches(sys.argv[1:]):
            return _run()
        from contextlib import suppress

        from bfpp.sim import fork_server
        from bfpp.sim.blas import one_thread

        try:
            with suppress(OSError), one_thread():  # where workers are needed, it is reported
                fork_server.start()
            return _run()
        finally:
            fork_server.stop()
    except KeyboardInterrupt:
        print("bfpp: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED


def _searches(words: list[str]) -> bool:
    options = {word.partition("=")[0] for word in words}
    return not ALONE.intersection(options) and not SEARCHES.isdisjoint(words[:1])


def _run() -> int:
    if TRAINS.isdisjoint(sys.argv[1:2]):
        from bfpp.sim.blas import one_thread

        with one_thread():
            import numpy  # noqa: F401
    from bfpp.command_line import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
