"""Uneven steps that really run, asleep: as long as predicted, and their remedies help as said."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

LENGTHS = "512:600,2048:250,8192:120,16384:20,32768:10"
RANKS = "--pp 2 --dp 2 --microbatches 4 --sampled-steps 1"
UNEVEN = f"--lengths {LENGTHS} --attention-share 0.5"
MODEL = "--layers 4 --hidden 16 --context 8 --microbatch-size 1"

LAYERS = """layers = [
    {{ count = 1, forward = 0, backward = 0, {halves}, parameters = 9000, bytes = 9000 }},
    {{ count = 4, forward = 0.01, backward = 0.02, {of_both}, parameters = 9000, bytes = 9000 }},
    {{ count = 1, forward = 0, backward = 0, {halves}, parameters = 9000, bytes = 9000 }},
]
channels = [{{ sender = 0, receiver = 1, latency = 0.0005, bandwidth = 1e9 }}]
[about]
[run]
ranks = 2
replicas = 2
microbatch_size = 1
before = 1
after = 1
own_ends = 0
[passes]
forward = 0
backward = 0
{each_half}
[data]
{lines}
[dispatch]
next = 0.0003
wake = 0.0005
"""
OF_DATA = (
    "gather", "all-reduce", "reduce-scatter", "norm", "norm-of-shares", "optimizer",
    "clipped-optimizer",
)  # fmt: skip


@pytest.fixture
def profile(tmp_path):
    """A profile as `bfpp calibrate` writes it, of layers that take long."""
    path = tmp_path / "profile.toml"
    path.write_text(
        LAYERS.format(
            halves="backward_input = 0, backward_weight = 0",
            of_both="backward_input = 0.01, backward_weight = 0.01",
            each_half="backward_input = 0\nbackward_weight = 0",
            lines="\n".join(f"{name} = {{ fixed = 0.002, per_parameter = 0 }}" for name in OF_DATA),
        )
    )
    return str(path)


@pytest.mark.usefixtures("one_process")
def test_an_uneven_run_takes_as_long_as_predicted_and_so_do_remedies(
    tmp_path, profile, answer, bfpp
):
    trace = str(tmp_path / "ran.json.gz")

    def both(slow: str) -> tuple[float, float]:
        words = f"1f1b {RANKS} {UNEVEN} {slow}"
        predicted = answer(f"simulate {words} --profile {profile}")["step_time"]
        run = f"run {words} {MODEL} --backend local --steps 4 --mock-compute {profile}"
        code, out, _ = bfpp(f"{run} --trace {trace} --force --json")
        assert code == 0
        return predicted, min(json.loads(out)["step_times"])

    (healed, ran_healed), (slow, ran_slow) = both(""), both("--slow rank=1,replica=0:1.8")
    assert 0.8 * slow < ran_slow < 1.3 * slow
    words = f"explain 1f1b {RANKS} {UNEVEN} --slow rank=1,replica=0:1.8 --profile {profile}"
    gains = {each["name"]: each["gain"] for each in answer(words)["remedies"]}
    assert gains["replace"] == pytest.approx(1 - healed / slow)
    assert 1 - ran_healed / ran_slow == pytest.approx(gains["replace"], abs=0.12)
    paces = {each["rank"]: each["gain"] for each in answer(f"explain {trace}")["ranks"]}
    assert max(paces, key=paces.__getitem__) == 1


def test_what_cannot_be_mocked_is_refused(bfpp, profile):
    words = f"run 1f1b {RANKS} {MODEL}"
    code, _, err = bfpp(f"{words} --slow rank=1:2")
    assert code == 2
    assert "--sampled-steps: needs --mock-compute in a run" in err
    code, _, err = bfpp(f"{words} --slow-links rank=1:2 --mock-compute {profile}")
    assert code == 2
    assert "--slow-links: can be simulated only" in err
