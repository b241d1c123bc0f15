"""The `bfpp` command, as a script and as `python -m bfpp`.

Imports take some tenths of a second, in which Ctrl-C ends it like later; what is imported stays, so
the garbage collector is off meanwhile.
"""

import gc
import os
import sys

from bfpp.terminal.interrupts import INTERRUPTED, collect_garbage

TRAINS = {"calibrate", "export", "measure", "run", "study"}
"""Commands that need torch, which may share numpy's BLAS, as in conda-forge's builds."""

THREADS = "OPENBLAS_NUM_THREADS"
"""The threads of numpy's BLAS; to start a second one keeps a core busy for 0.03 s."""


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.disable()
    try:
        import datetime  # noqa: F401  # numpy's C code would take Ctrl-C for an error of this import

        if TRAINS.isdisjoint(sys.argv[1:2]):
            os.environ.setdefault(THREADS, "1")
        from bfpp.command_line import main

        return main()
    except KeyboardInterrupt:
        print("bfpp: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    finally:
        collect_garbage()


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
