"""`bfpp run --dry-run`: one rank of a job that is not run, beside runs and arithmetic."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.helpers.described import require_described

SMALL = "--layers 4 --hidden 16 --context 8 --microbatch-size 1 --microbatches 4"
LLAMA_70B = "--model llama3-70b --pp 8 --dp 8 --sharding full"
LLAMA_405B = "--model llama3-405b --pp 16 --dp 128 --tp 8 --sequence-parallel --sharding full"
LARGE = "--microbatches 16 --microbatch-size 1 --precision bf16 --clip 1"


@pytest.fixture
def dry(bfpp):
    def run(words: str) -> dict[str, Any]:
        code, out, err = bfpp(f"run {words} --dry-run --json")
        assert code == 0, err
        record = json.loads(out)
        require_described("run", record)
        return record

    return run


@pytest.mark.usefixtures("forked_processes")
def test_a_run_reports_the_same_predictions(dry, bfpp) -> None:
    pytest.importorskip("torch")
    words = f"breadth-first --pp 1 --loops 2 --dp 2 --sharding full {SMALL}"
    _, out, _ = bfpp(f"run {words} --steps 1 --backend cpu --json")
    ran = json.loads(out)
    for process in range(2):
        record = dry(f"{words} --rank {process}")
        (held,) = (
            each
            for each in ran["memory"]
            if (each["rank"], each["replica"]) == (record["rank"], record["replica"])
        )
        assert record["memory"] == {
            "peak": held["predicted_peak"],
            "parts": held["predicted_parts"],
        }
        assert record["start_memory"]["peak"] == ran["start_memory"][process]["predicted_peak"]


def test_ranks_name_each_other(dry) -> None:
    """What one sends another receives, and members of a group know the same group."""
    records = [dry(f"1f1b --pp 4 --dp 2 {SMALL} --rank {rank}") for rank in range(8)]
    sent, received = Counter(), Counter()
    for each in records:
        for group in each["groups"]:
            for member in group["members"]:
                assert group in records[member]["groups"]
        for row in each["tasks"]["operations"]:
            end, _, what = row["operation"].partition(" ")
            {"send": sent, "receive": received}.get(end, Counter())[what] += row["tasks"]
    assert sent == received == {"activations": 2 * 3 * 4, "gradients": 2 * 3 * 4}
    assert sorted(layer for each in records[::2] for layer in each["layers"]) == [*range(6)]


def test_70_billion_parameters_on_64_gpus(dry) -> None:
    record = dry(f"1f1b {LLAMA_70B} {LARGE} --backend cuda --rank 9")
    assert (record["processes"], record["rank"], record["replica"]) == (64, 1, 1)
    hidden, mlp, keys = 8192, 28672, 8 * 128
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * mlp + 2 * hidden
    share = 10 * layer / 8
    assert record["memory"]["parts"]["training state"] == 12 * share  # weights, two moments
    assert record["memory"]["parts"]["weights"] == 2 * 2 * 10 * layer
    # Made layer by layer: a share in single precision, and a layer.
    assert record["start_memory"]["peak"] == pytest.approx(4 * share + 4 * layer, rel=0.02)
    groups = {each["purpose"]: each for each in record["groups"]}
    assert groups["data"]["members"] == [*range(8, 16)]
    assert groups["pipeline"]["members"] == [*range(1, 64, 8)]
    assert groups["transfer activations from 1 to 2"]["members"] == [9, 17]
    # Two channels to each neighbour, gathers and reductions, the norm of all ranks.
    assert record["spinning"]["ctas"] == 4 * 8 + 16 + 4
    assert record["spinning"]["multiprocessors"] == 132


def test_405_billion_parameters_on_16384_gpus(dry) -> None:
    record = dry(f"1f1b {LLAMA_405B} {LARGE} --backend cuda --rank 16383")
    assert record["processes"] == 16384
    assert (record["rank"], record["replica"], record["tp_rank"]) == (15, 127, 7)
    sizes = {each["purpose"]: each["size"] for each in record["groups"]}
    assert sizes == {
        "everyone": 16384,
        "layers": 8,
        "data": 128,
        "norms": 1024,
        "pipeline": 16,
        "transfer activations from 14 to 15": 2,
        "transfer gradients from 15 to 14": 2,
    }
    (data,) = (each for each in record["groups"] if each["purpose"] == "data")
    assert data["members"] == [*range(15 * 1024 + 7, 16384, 8)]


def test_tables(bfpp) -> None:
    code, out, _ = bfpp(f"run 1f1b --pp 2 --dp 2 {SMALL} --backend cuda --dry-run --rank 3")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["data", "2", "2,", "3", "16", "147", "MiB"] in rows
    assert ["receive", "activations", "from", "0", "transfer", "activations", "from", "0", "to",
            "1", "8"] in rows  # fmt: skip
    assert ["together,", "at", "the", "most", "32"] in rows


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--dry-run --rank 8", "--rank: must be less than 8, the processes"),
        ("--dry-run --rank -1", "argument --rank: must be a whole number of at least 0"),
        ("--dry-run --backend local", "--dry-run: is of one rank; --backend local has one process"),
        ("--rank 1", "--rank: is the rank of --dry-run"),
        ("--dry-run --backend cuda --cluster nowhere", "--cluster"),
    ],
)
def test_bad_input_is_one_line(words, reason, bfpp) -> None:
    code, _, err = bfpp(f"run 1f1b --pp 4 --dp 2 {SMALL} {words}")
    assert code == 2
    assert err.count("\n") == 1
    assert reason in err
