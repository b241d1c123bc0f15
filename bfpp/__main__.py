"""`python -m bfpp`: the `bfpp` command."""

import sys

from bfpp.command_line import main

if __name__ == "__main__":
    sys.exit(main())
