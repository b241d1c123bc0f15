"""The `bfpp` command, as a script and as `python -m bfpp`.

Imports take some tenths of a second, in which Ctrl-C ends it like later; what is imported stays, so
the garbage collector is off meanwhile. A command that searches has workers, whose server is forked
off it once it has imported what they share, and is ended if it is not needed.
"""

import gc
import os
import sys

from bfpp.terminal.interrupts import INTERRUPTED, collect_garbage

SEARCHES = {"search", "tradeoff"}
ALONE = {"-h", "--help", "--executor"}
"""Options with which a search needs no workers of its own."""

TRAINS = {"calibrate", "export", "measure", "run"}
"""Commands that need torch, which may share numpy's BLAS, as in conda-forge's builds."""


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.disable()
    try:
        import datetime  # noqa: F401  # numpy's C code would take Ctrl-C for an error of this import

        if not _searches(sys.argv[1:]):
            return _run()
        from contextlib import suppress

        from bfpp.sim.engines.loops.blas import one_thread
        from bfpp.sim.search import fork_server

        try:
            with suppress(OSError), one_thread():  # where workers are needed, it is reported
                import bfpp.sim.search.evaluation  # noqa: F401

                fork_server.start(forked=True)
            return _run()
        finally:
            fork_server.stop()
    except KeyboardInterrupt:
        print("bfpp: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    finally:
        collect_garbage()


def _searches(words: list[str]) -> bool:
    options = {word.partition("=")[0] for word in words}
    return not ALONE.intersection(options) and not SEARCHES.isdisjoint(words[:1])


def _run() -> int:
    if TRAINS.isdisjoint(sys.argv[1:2]):
        from bfpp.sim.engines.loops.blas import one_thread

        with one_thread():
            import numpy  # noqa: F401
    from bfpp.command_line import main

    return main()


def _leave_working_directory() -> None:
    """Undo that `python -m` looks for modules in the working directory first.

    Where bfpp itself is there, it comes last.
    """
    if not sys.flags.safe_path:
        first = sys.path.pop(0)
        if first == os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120
            sys.path.append(first)


if __name__ == "__main__":
    _leave_working_directory()
    sys.exit(main())
