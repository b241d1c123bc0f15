"""The program of a process that we start ourselves: `python -m bfpp.executor DIRECTORY`.

It can be asked where it is from its first moment on, since importing torch may take minutes. So it
stands in a package that does not import torch: Python imports the packages around a program first.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
from pathlib import Path


def main() -> None:
    """Take part, once all that this needs is imported."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # `bfpp.executor.processes.launcher.member.ASK_WHERE`
    gc.disable()  # what is imported stays: to look through it for garbage takes long
    from bfpp.executor.processes.launcher.member import main as take_part

    gc.freeze()
    gc.enable()
    take_part(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
