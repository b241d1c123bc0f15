"""The parser of a checkout of Megatron-LM, on devices that are not there: does it take a command?

`python -m tests.helpers.megatron_parser FOLDER` reads lines of JSON, `flags` and the number of
`gpus`; it answers each with its `error`, empty for none, of `parse_args` and `validate_args`.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from packaging.version import Version

from tests.helpers.foreign_modules import imported

HOPPER, NEW = (9, 0), "99.0"
"""The compute capability of the devices, and the version of Transformer Engine."""


def main(folder: str) -> None:
    """Answer what standard input asks."""
    import torch

    sys.path.insert(0, folder)
    os.environ |= {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "RANK": "0"}
    arguments = imported("megatron.training.arguments")
    imported("megatron.core.utils").get_te_version = lambda: Version(NEW)  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda *_: HOPPER
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    torch.cuda.device_count = lambda: 8
    torch.cuda.is_available = lambda: True
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps({"error": _error(arguments, asked)}) + "\n")


def _error(arguments: Any, asked: dict[str, Any]) -> str:
    os.environ["WORLD_SIZE"] = str(asked["gpus"])
    sys.argv = ["pretrain_gpt.py", *asked["flags"]]
    said = StringIO()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(said):
            arguments.validate_args(arguments.parse_args())
    except (Exception, SystemExit) as failure:
        line = said.getvalue().strip().splitlines()
        at = failure.__traceback__
        while at and at.tb_next:
            at = at.tb_next
        where = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
        return f"{type(failure).__name__}: {failure} {line[-1:]} {where}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
