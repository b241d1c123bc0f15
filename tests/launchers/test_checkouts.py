"""Launch files in checkouts of other projects, where the environment names some."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.launchers.launch_files import (
    PIPELINE,
    TESTS,
    checkout,
    deepspeed_scripts,
    functional_tests,
    nemo_configurations,
    recipes,
)
from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.megatron.flag_kinds import OTHER_NAMES
from bfpp.launchers.sources.documents import leaves, text_of_file, yaml_table
from bfpp.schedules import InvalidConfiguration

MEGATRON, BRIDGE = checkout("BFPP_MEGATRON_LM"), checkout("BFPP_MEGATRON_BRIDGE")

DEEPSPEED, NEMO = checkout("BFPP_MEGATRON_DEEPSPEED"), checkout("BFPP_NEMO_LAUNCHER")

LEAST, FEWEST_RECIPES = 0.8, 30
"""The share of functional tests that are predicted, and the number of recipes."""


@pytest.mark.skipif(MEGATRON is None, reason="BFPP_MEGATRON_LM names no checkout")
def test_most_functional_tests_of_megatron_lm_are_predicted() -> None:
    assert MEGATRON is not None
    outcomes = list(functional_tests(MEGATRON))
    predicted = [each for each in outcomes if each.launch]
    assert len(predicted) >= LEAST * len(outcomes) > 0


@pytest.mark.skipif(MEGATRON is None, reason="BFPP_MEGATRON_LM names no checkout")
def test_no_flag_of_a_functional_test_is_ignored_in_silence() -> None:
    for path in sorted(Path(MEGATRON or "").joinpath(TESTS).rglob("*.yaml")):
        text = text_of_file(str(path))
        if not PIPELINE.search(text):
            continue
        try:
            launch = read_launch_file(str(path))
        except InvalidConfiguration:
            continue
        flags = leaves(str(path), yaml_table(str(path), text)["MODEL_ARGS"]).items()
        given = {OTHER_NAMES.get(name, name) for name, words in flags if words != ("false",)}
        understood = {each.partition(" ")[0] for each in launch.understood}
        assert given <= understood | {each.name for each in launch.ignored}, path


@pytest.mark.skipif(BRIDGE is None, reason="BFPP_MEGATRON_BRIDGE names no checkout")
def test_recipes_of_megatron_bridge_are_predicted() -> None:
    assert BRIDGE is not None
    assert sum(each.launch is not None for each in recipes(BRIDGE)) >= FEWEST_RECIPES


@pytest.mark.skipif(DEEPSPEED is None, reason="BFPP_MEGATRON_DEEPSPEED names no checkout")
def test_deepspeeds_json_is_read_of_most_examples_of_megatron_deepspeed() -> None:
    assert DEEPSPEED is not None
    outcomes = list(deepspeed_scripts(DEEPSPEED))
    read = [
        each
        for each in outcomes
        if each.launch and "deepspeed_config" not in str([*each.launch.ignored])
    ]
    assert len(read) >= LEAST * len(outcomes) > 0


@pytest.mark.skipif(NEMO is None, reason="BFPP_NEMO_LAUNCHER names no checkout")
def test_all_that_a_step_needs_of_nemos_configurations_is_worked_out() -> None:
    assert NEMO is not None
    outcomes = [each for each in nemo_configurations(NEMO) if "not modelled" not in each.reason]
    launches = [each.launch for each in outcomes if each.launch]
    assert len(launches) >= LEAST * len(outcomes) > 0
    left = {each.name for launch in launches for each in launch.ignored if "${" in each.value}
    sizes = ("hidden", "length", "size", "layers", "embeddings")
    assert not [each for each in left if each.endswith(sizes)]
