"""Outputs of commands, to the letter, for a step worked out by hand (`tests.helpers.hand`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.hand import require_golden, words

Run = Callable[..., tuple[int, str, str]]

# fmt: off
BOTH = {"exposed_data": 0.25, "exposed_model": 0.0, "compute_time": 6.0, "idle": 4.375,
        "utilisation": 6 / 10.375}
STEP = {
    "schema": 1, "schedule": "1f1b", "engine": "compiled",
    "step_time": 10.375,              # to the end of rank 0's optimizer
    "bubble": 10.375 / 6 - 1,         # each rank computes 2 x (1 + 2) = 6 s
    "bubble_fraction": 4.375 / 10.375,
    "span": 10.0,                     # of rank 0's passes; those of rank 1 take 7.5 - 1.5 = 6 s
    "period": 10.375,                 # rank 0 is first and last
    "tasks": 16,                      # 8 passes, 4 transfers, 2 reductions, 2 optimizers
    "ranks": [
        # Rank 0 runs nothing else during 2-2.5, 4.5-5, 7.5-8; rank 1 during 1-1.5, 7.5-8. Rank 1
        # reduces during a transfer: both are exposed.
        {**BOTH, "rank": 0, "start": 0.0, "end": 10.0, "exposed_transfer": 1.5,
         "peak_microbatches": 2.0},
        {**BOTH, "rank": 1, "start": 1.5, "end": 7.5, "exposed_transfer": 1.0,
         "peak_microbatches": 1.0},
    ],
}
WAITS = [
    # Rank 0 waits from 2 to 5 and from 7 to 8 for rank 1, the last 0.5 s for a transfer each time.
    {"other ranks' compute": 3.0, "transfer": 1.0, "exposed reduction": 0.25, "optimizer": 0.125},
    # Rank 1 for the first pass (1 s) and its transfer; in the end for the last transfer, then 2 s
    # of compute, a reduction and the optimizer of rank 0.
    {"warm-up": 1.0, "drain": 2.0, "transfer": 1.0, "exposed reduction": 0.25, "optimizer": 0.125},
]
PATH = [  # operation, rank, stage, micro-batch (-1: of all), start, end
    ("forward", 0, 0, 0, 0.0, 1.0), ("transfer activations", 0, 0, 0, 1.0, 1.5),
    ("forward", 1, 1, 0, 1.5, 2.5), ("backward", 1, 1, 0, 2.5, 4.5),
    ("forward", 1, 1, 1, 4.5, 5.5), ("backward", 1, 1, 1, 5.5, 7.5),
    ("transfer gradients", 1, 1, 1, 7.5, 8.0), ("backward", 0, 0, 1, 8.0, 10.0),
    ("reduce", 0, 0, -1, 10.0, 10.25), ("optimizer", 0, -1, -1, 10.25, 10.375),
]
MEAN_RANKS = {  # of the step, and of one whose backward passes take 3 s; and their error
    "compute": (6.0, 8.0, -0.25), "warm-up": (0.5, 0.5, 0.0), "drain": (1.0, 1.5, -1 / 3),
    "other ranks' compute": (1.5, 2.0, -0.25), "transfer": (1.0, 1.0, 0.0),
    "exposed reduction": (0.25, 0.25, 0.0), "optimizer": (0.125, 0.125, 0.0),
}
PER_PERCENT = {  # of the path: 3 forward passes, 3 backward passes, 2 transfers
    "forward": 0.03, "backward": 0.06, "transfer": 0.01, "reduce": 0.0025, "optimizer": 0.00125,
    "stage.0": 0.03, "stage.1": 0.06,
}
# fmt: on


@pytest.fixture
def answer(bfpp: Run) -> Callable[[str], Any]:
    """The JSON of a command that ends well."""

    def of(line: str) -> Any:
        code, out, _ = bfpp(f"{line} --json")
        assert code == 0
        return json.loads(out)

    return of


def approximately(expected: Any) -> Any:
    """The same, its numbers to 12 digits: sums may be in another order."""
    match expected:
        case dict():
            return {key: approximately(value) for key, value in expected.items()}
        case list() | tuple():
            return type(expected)(approximately(each) for each in expected)
        case float():
            return pytest.approx(expected, rel=1e-12)
    return expected


def nonzero(seconds: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value}


def test_every_number_of_a_step(answer: Callable[[str], Any]) -> None:
    assert answer(f"simulate {words()}") == approximately(STEP)


def test_every_number_of_an_explanation(answer: Callable[[str], Any]) -> None:
    found = answer(f"explain {words()}")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert [rank["idle"] for rank in found["ranks"]] == [4.375, 4.375]
    assert [nonzero(rank["causes"]) for rank in found["ranks"]] == approximately(WAITS)
    compute = {"compute": 6.0}
    halved = {name: sum(rank.get(name, 0.0) for rank in WAITS) / 2 for name in WAITS[0] | WAITS[1]}
    assert nonzero(found["mean_rank"]) == approximately(compute | halved)
    assert found["shares"] == approximately(
        compute
        | {
            "bubble": 3.0,
            "exposed communication": 1.25,
            "optimizer, peers and dispatch": 0.125,
        }
    )
    keys = "operation", "rank", "stage", "microbatch", "start", "end"
    path = [tuple(task[key] for key in keys) for task in found["critical_path"]]
    assert path == approximately(PATH)
    depends = {each["parameter"]: each["seconds_per_percent"] for each in found["sensitivities"]}
    assert depends == pytest.approx(PER_PERCENT)


def test_every_number_of_a_difference(answer: Callable[[str], Any], tmp_path: Path) -> None:
    """Of the step and one whose backward passes take 3 s: later by 1, 1, 1 and 3 s in the end."""
    files = [str(tmp_path / f"{name}.json") for name in ("first", "second")]
    for file, seconds in zip(files, (2, 3), strict=True):
        answer(f"simulate {words(backward=seconds)} --timeline {file}")
    found = answer(f"diff {' '.join(files)}")
    assert found["simulated_step_time"] == 10.375
    assert found["measured_step_time"] == 13.375
    assert found["step_time_error"] == pytest.approx(-3 / 13.375)
    assert found["operations"]["backward"] == approximately(
        {"count": 4, "simulated_mean": 2.0, "measured_mean": 3.0, "mean_error": -1 / 3,
         "simulated_total": 8.0, "measured_total": 12.0, "total_error": -1 / 3, "error": -1 / 3}
    )  # fmt: skip
    assert found["ranks"][0] == approximately(
        {"rank": 0, "simulated_compute_time": 6.0, "measured_compute_time": 8.0,
         "compute_time_error": -0.25, "simulated_idle": 4.375, "measured_idle": 5.375,
         "idle_error": -1 / 5.375}
    )  # fmt: skip
    assert [lane["simulated_busy"] for lane in found["lanes"]] == [6.125, 0.25, 1.0, 1.0] * 2
    assert [lane["measured_busy"] for lane in found["lanes"]] == [8.125, 0.25, 1.0, 1.0] * 2
    assert [(lane["rank"], lane["lane"]) for lane in found["lanes"]] == [
        (0, "compute"), (0, "data"), (0, "send activations to 1"), (0, "receive gradients from 1"),
        (1, "compute"), (1, "data"), (1, "receive activations from 0"), (1, "send gradients to 0"),
    ]  # fmt: skip
    slower = 6.125 / 8.125 - 1
    assert [lane["busy_error"] for lane in found["lanes"]] == approximately(
        [slower, 0.0, 0.0, 0.0] * 2
    )
    assert [lane["error"] for lane in found["lanes"]] == approximately([slower, 0.0, 0.0, 0.0] * 2)
    assert {
        name: tuple(each.values())
        for name, each in found["mean_rank"].items()
        if any(each.values())
    } == approximately(MEAN_RANKS)
    assert {*found["mean_rank"]["compute"]} == {
        "simulated_seconds", "measured_seconds", "seconds_error",
    }  # fmt: skip
    sources = found["simulated_source"], found["measured_source"]
    assert (*sources, found["not_measured"], found["memory"]) == ("compiled", "compiled", None, [])
    assert found["worst"][0] == {
        "operation": "backward", "number": 5, "rank": 1, "peer": -1, "stage": 1, "unit": 1,
        "microbatch": 0, "simulated_duration": 2.0, "measured_duration": 3.0,
        "duration_difference": -1.0, "simulated_start": 2.5, "measured_start": 2.5, "drift": 0.0,
    }  # fmt: skip
    assert found["drifted"][0] == {
        "operation": "reduce", "number": 14, "rank": 0, "peer": -1, "stage": 0, "unit": 0,
        "microbatch": -1, "simulated_duration": 0.25, "measured_duration": 0.25,
        "duration_difference": 0.0, "simulated_start": 10.0, "measured_start": 13.0, "drift": -3.0,
    }  # fmt: skip
    worst = [(task["number"], task["duration_difference"]) for task in found["worst"]]
    assert worst == [(5, -1.0), (7, -1.0), (9, -1.0), (13, -1.0)]
    drifts = [task["drift"] for task in found["drifted"]]
    assert drifts == [-3.0, -3.0, -2.0, -2.0, -2.0, -2.0, -1.0, -1.0, -1.0, -1.0]


# fmt: off
COMMANDS = {
    "simulate": f"simulate {words()} --text",
    "compare": f"compare {words('1f1b gpipe')}",
    "explain": f"explain {words()}",
    "show": "show first.json",
    "diff": "diff first.json second.json",
    "orders": "orders zb-h1 --pp 2 --microbatches 3",
    "orders-torch": "orders depth-first --pp 2 --loops 2 --microbatches 2 --format torch",
    "check": "check 1f1b --pp 2 --microbatches 2",
}
# fmt: on


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed(
    bfpp: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # as wide as in files
    if name in ("show", "diff"):
        for file, seconds in (("first", 2), ("second", 3)):
            bfpp(f"simulate {words(backward=seconds)} --timeline {file}.json")
    code, out, error = bfpp(COMMANDS[name])
    assert (code, error) == (0, "")
    require_golden(f"printed/{name}.txt", out)


WHAT_IF = """\
With backward=3: step time +28.92%, by cause on the mean rank
cause                 difference
────────────────────────────────
compute                     +2 s
drain                    +500 ms
other ranks' compute     +500 ms
step time                   +3 s

With optimizer=0.0625: step time -0.60%, by cause on the mean rank
cause      difference
─────────────────────
optimizer    -62.5 ms
step time    -62.5 ms

With transfer=x1: step time +0.00%, by cause on the mean rank
cause      difference
─────────────────────
step time        +0 s

"""
"""Backward passes of 3 s are `MEAN_RANKS`; the optimizer is the last thing on both ranks."""


def test_what_if_is_a_table_of_what_changes(bfpp: Run) -> None:
    sets = "--set backward=3 --set optimizer=0.0625 --set transfer=x1"
    code, out, _ = bfpp(f"explain {words()} {sets}")
    assert code == 0
    told = "".join(f"{line.rstrip()}\n" for line in out.splitlines())
    assert told.endswith(f"\n\n{WHAT_IF}")


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (2, 2, "first (compiled) and second (compiled) steps take as long: 10.38 s."),
        (2, 3, "a step takes 10.38 s: 22.4% less than second (compiled) (13.38 s)."),
        (3, 2, "a step takes 13.38 s: 28.9% more than second (compiled) (10.38 s)."),
    ],
)
def test_the_page_of_a_difference_says_it_in_a_sentence(
    bfpp: Run, first: int, second: int, sentence: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for file, seconds in (("first", first), ("second", second)):
        bfpp(f"simulate {words(backward=seconds)} --timeline {file}.json")
    assert bfpp("diff first.json second.json --html page.html")[0] == 0
    assert sentence in Path("page.html").read_text()


@pytest.mark.parametrize("command", ["simulate", "explain", "compare"])
def test_what_has_no_effect_is_said_once(
    bfpp: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each command that predicts; of a saved timeline there is nothing to say."""
    monkeypatch.chdir(tmp_path)
    said = "gpipe does not depend on --norm, which needs --clipping\n"
    for extra, times in (("--norm 1", 1), ("--norm 1 --clipping", 0)):
        code, out, error = bfpp(f"{command} gpipe --pp 2 --microbatches 2 {extra}")
        assert (code, error, out.count(said)) == (0, "", times)
    bfpp("simulate gpipe --pp 2 --microbatches 2 --norm 1 --timeline saved.json")
    code, out, error = bfpp("explain saved.json")
    assert (code, error, said in out) == (0, "", False)
    assert "Where it is from" in out
