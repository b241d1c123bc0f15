"""Launch files that we write are read by our own readers: the same experiment, and prediction."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, example, given, reject, settings

from bfpp.api.predictions import predict
from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.launch import FrameworkConfig
from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.megatron.published import FURTHER
from bfpp.launchers.releases import Number
from bfpp.schedules import InvalidInput
from bfpp.sim.experiment.experiment import Experiment
from tests.helpers.launched_experiments import of_megatron, of_torchtitan

EXAMPLES = 300 if os.environ.get("BFPP_SLOW") else 40


def read_back(experiment: Experiment, text: str) -> Experiment:
    command = " ".join(text.replace("\\\n", " ").split("\n"))
    read = read_launch_file(command)
    further = FURTHER.get(experiment.transformer.name, "")
    assert [each.name for each in read.ignored if each.name not in further] == []
    model = replace(read.experiment.transformer, name=experiment.transformer.name)
    return read.experiment.changed(model=model, cluster=experiment.cluster)


def predicted_and_written(
    experiment: Experiment, framework: str, release: Number | None = None
) -> tuple[dict[str, Any], FrameworkConfig]:
    """An experiment's record, and all of it in a framework's words."""
    try:
        predicted = predict(experiment).record
        config = framework_config(experiment, framework, release)
    except InvalidInput:
        reject()
    assert config.missing == ()
    return predicted, config


@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(
    Experiment(
        "1f1b",
        pp=1,
        tp=2,
        dp=1,
        microbatches=2,
        model="qwen3-30b-a3b",
        cluster="dgx-h100",
        implementation="current",
        sequence_parallel=True,
        dp_overlap=True,
        clipping=True,
        recompute="none",
        attention="fused",
    )
)  # of which experts alone have replicas
@given(of_megatron())
def test_what_is_written_for_megatron_is_read_back(experiment: Experiment) -> None:
    predicted, config = predicted_and_written(experiment, "megatron")
    read = read_back(experiment, config.text)
    assert framework_config(read, "megatron").text == config.text
    again = predict(read).record
    assert {name: again[name] for name in predicted} == predicted


def require_same(
    experiment: Experiment, source: str, predicted: dict[str, Any], text: str, release: Number
) -> None:
    """What torchtitan's reader makes of a file or a command is the experiment."""
    read = read_launch_file(source)
    assert [each.name for each in read.ignored] == []
    there = read.experiment.changed(cluster=experiment.cluster)
    assert framework_config(there, "torchtitan", release).text == text
    again = predict(there).record
    assert {name: again[name] for name in predicted} == predicted


@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(experiment=of_torchtitan())
def test_what_is_written_for_torchtitan_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, experiment: Experiment
) -> None:
    predicted, config = predicted_and_written(experiment, "torchtitan", (0, 2))
    file = tmp_path_factory.mktemp("torchtitan") / "job.toml"
    file.write_text(config.text)
    require_same(experiment, str(file), predicted, config.text, (0, 2))


@pytest.mark.parametrize("release", [(0, 3), (0, 4)])
@settings(max_examples=EXAMPLES // 2, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(experiment=of_torchtitan(toml=False))
def test_what_is_written_for_later_releases_is_read_back(
    experiment: Experiment, release: Number
) -> None:
    predicted, config = predicted_and_written(experiment, "torchtitan", release)
    command = " ".join(config.text.replace("\\\n", " ").split())
    require_same(experiment, command, predicted, config.text, release)
