"""The pipeline runtime of another release of PyTorch, from a folder: does it load these actions?

`python -m tests.helpers.torch_runtime FOLDER` reads lines of JSON: `stages` and `microbatches`, and
`rows` of actions; it answers each with its `error`, empty for none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

from tests.helpers.foreign_modules import imported, package_at

PACKAGE = "other_pipelining"


def main(folder: str) -> None:
    """Answer what standard input asks."""
    import torch.distributed

    assert torch.distributed.is_available()
    package_at(PACKAGE, f"{folder}/torch/distributed/pipelining")
    schedules = imported(f"{PACKAGE}.schedules")
    for line in sys.stdin:
        error = ""
        try:
            _load(schedules, json.loads(line))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        sys.stdout.write(json.dumps({"error": error}) + "\n")


def _load(schedules: Any, asked: dict[str, Any]) -> None:
    """Load the file as the runtime of each rank does, and run it dry."""
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    usual = {
        "_defer_reduce_grad_wait": False, "_max_outstanding_sends": None, "_max_active_stages": 3,
        "_unshard_lookahead": "full", "_defer_pp_recv": False, "pipeline_order": {},
        "pp_group_size": len(asked["rows"]), "_num_stages": asked["stages"],
        "_n_microbatches": asked["microbatches"], "_stages": [SimpleNamespace()],
    }  # fmt: skip
    vars(runtime).update(usual)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join(asked["rows"]) + "\n")
        file.flush()
        runtime._load_csv(file.name, format="compute_comms")
    known = {
        rank: [each for each in row if each.computation_type.value not in IGNORED]
        for rank, row in runtime.pipeline_order_with_comms.items()
    }
    if not any("OVERLAP" in row for row in asked["rows"]):  # which the dry run does not know
        schedules._simulate_comms_compute(
            known, runtime.stage_index_to_group_rank.__getitem__, asked["stages"]
        )


IGNORED = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
"""Actions that the dry run does not know."""


if __name__ == "__main__":
    main(sys.argv[1])
