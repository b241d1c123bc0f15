"""Public traces: Holistic Trace Analysis' answers, and an answer to all that can be read.

The traces are read from checkouts, whose paths two variables of the environment name; the table has
the answers of HolisticTraceAnalysis 0.5.0 to them, and what these count:

- `all`: activities of the devices, as we do.
- `launched`: only those that the host launched within the trace, until its last step ended.
- `operators`: also operators of the host that have a stream among their arguments.
- `waits`: also waits for events, on the devices or of the host.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bfpp.api.recorded.kernels import load_traces
from bfpp.schedules import InvalidInput

TABLE = json.loads(Path(__file__).with_name("hta_answers.json").read_text())
OTHERS = (".pb", "908_results.json.gz")
"""Names of JAX's and rocprofiler's traces."""

CHECKOUTS = {
    "facebookresearch/HolisticTraceAnalysis": "BFPP_HTA_CHECKOUT",
    "AMD-AGI/TraceLens": "BFPP_TRACELENS_CHECKOUT",
}
"""Variables of the environment, by repository."""

SAME = {"all", "launched"}
NO_TRACES = ("cpu_op_map", "execution_details", "_et.json", ".raw.gz")
"""Names of other files in the folders of traces."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CHECKOUTS)
def repository(request) -> tuple[str, Path]:
    """A repository's name and where it is checked out."""
    variable = CHECKOUTS[request.param]
    if not os.environ.get(variable):
        commit = TABLE["commits"][request.param]
        pytest.skip(f"needs {variable}, the path of {request.param} at {commit}")
    return request.param, Path(os.environ[variable])


def test_idle_time_compute_and_overlap_are_those_of_the_other_program(repository):
    name, folder = repository
    compared = 0
    for file, (idle, compute, seconds, overlap, counts) in TABLE["answers"][name].items():
        (rank,) = load_traces([folder / file], file).ranks
        found = rank.breakdown
        parts = found.launched_in_steps if counts == "launched" else found.whole
        assert parts is not None, file
        if counts in SAME:
            own = (parts.idle, parts.compute, parts.seconds)
            answers = (idle / 1e6, compute / 1e6, seconds / 1e6)
            assert own == pytest.approx(answers, rel=0.01, abs=1e-8), file
            if overlap is not None:
                share = 100 * parts.overlapped_communication / parts.communication
                assert share == pytest.approx(overlap, rel=0.01, abs=0.01), file
            compared += 1
        else:  # what is counted in addition takes time: less of the window is idle, or it is longer
            assert parts.compute < compute / 1e6 or parts.seconds - parts.idle < seconds / 1e6
    assert compared >= 0.6 * len(TABLE["answers"][name])


def test_all_but_other_profilers_traces_are_answered_and_no_host_has_a_device(repository):
    _, folder = repository
    files = [
        path
        for path in sorted((folder / "tests").rglob("*"))
        if path.name.endswith((".json", ".json.gz", ".xplane.pb"))
        and not any(each in path.name for each in NO_TRACES)
    ]
    answered = []
    for path in files:
        try:
            found = load_traces([path], path.name)
        except InvalidInput:
            continue
        answered.append(path)
        for rank in found.ranks:
            record = rank.record()
            parts = [record[each] for each in ("seconds", "compute", "idle", "communication")]
            assert (None in parts) is not rank.is_measured, path
            assert (parts.count(None) == len(parts)) is not rank.is_measured, path
    refused = {path.name for path in files} - {path.name for path in answered}
    assert len(answered) > 20
    assert all(each.endswith(OTHERS) for each in refused), refused
