"""The parser of a release of torchtitan, from a folder: does it take these settings?

`python -m tests.helpers.torchtitan_parser FOLDER` reads lines of JSON, `flags` of its command; it
answers each with its `error`, empty for none, and the names and values that it `read`.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from tests.helpers.foreign_modules import imported


def main(folder: str) -> None:
    """Answer what standard input asks."""
    sys.path.insert(0, folder)
    manager = imported("torchtitan.config.manager")
    for line in sys.stdin:
        sys.stdout.write(json.dumps({"error": _error(manager, json.loads(line)["flags"])}) + "\n")


def _error(manager: Any, flags: list[str]) -> str:
    said = StringIO()
    module = flags[flags.index("--module") + 1]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            imported(f"torchtitan.models.{module}.config_registry")
            manager.ConfigManager().parse_args(flags)
    except (Exception, SystemExit) as failure:
        return f"{type(failure).__name__}: {failure} {said.getvalue()[-1500:]}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
