"""Profiles with Muon: measured, read, and what a run takes by them."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from bfpp.schedules import Operation
from bfpp.sim.costs.measured.profile import MATRICES
from bfpp.traces.formats.timeline_json import load_timeline
from bfpp.traces.timeline.timeline import Timeline

MODEL = "--layers 4 --hidden 256 --heads 4 --context 16 --microbatch-size 1 --backend local"
pytestmark = pytest.mark.usefixtures("one_process")

RUN = "1f1b --pp 1 --microbatches 2"


@pytest.fixture
def profile(bfpp, tmp_path):
    def measured(optimizer):
        path = tmp_path / "profile.toml"
        words = f"calibrate --quick --pp 1 {MODEL} --optimizer {optimizer} --out {path} --force"
        assert bfpp(words)[0] == 0
        return path, tomllib.loads(path.read_text())

    return measured


def seconds_of(timeline: Timeline, operation: Operation) -> float:
    own = timeline.graph.operation == operation
    return float(timeline.duration[own].sum())


def test_a_run_with_muon_takes_what_its_profile_says(bfpp, profile, tmp_path):
    path, found = profile("muon")
    assert found["muon"].keys() == {*MATRICES}
    assert [layer["count"] for layer in found["layers"]] == [1, 4, 1]
    for way in found["muon"].values():
        first, inner, last = way["layers"]
        assert first == last == 0.0  # the embedding and the head are AdamW's
        assert inner > 0
    predicted, measured = tmp_path / "predicted.json", tmp_path / "measured.json"
    words = f"simulate {RUN} --profile {path} --update-rule muon --timeline {predicted}"
    assert bfpp(words)[0] == 0
    words = f"run {RUN} {MODEL} --optimizer muon --steps 5 --trace {measured}"
    assert bfpp(words)[0] == 0
    timelines = [load_timeline(each) for each in (predicted, measured)]
    for operation in (Operation.ORTHOGONALISE, Operation.OPTIMIZER):
        expected, taken = (seconds_of(each, operation) for each in timelines)
        assert abs(np.log(expected / taken)) < np.log(4), operation  # beside other work


def test_a_profile_of_another_optimizer_has_no_matrices(profile):
    _, found = profile("sgd")
    assert "muon" not in found
    assert found["about"]["optimizer"] == "sgd"
