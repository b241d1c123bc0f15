"""Our models by name beside those that torchtitan and Megatron-Bridge ship, flag by flag.

`BFPP_TORCHTITAN` and `BFPP_MEGATRON_BRIDGE`: folders whose models to compare, too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launchers.launch_files import checkout
from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.megatron.published import FURTHER
from bfpp.launchers.published.models import ALIKE, SIZES, published_model
from bfpp.launchers.sources.command_words import settings_of
from bfpp.launchers.torchtitan.flavors import FLAVORS
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.presets.files import preset_names
from tests.helpers.shipped_models import Shipped, of_bridge, of_bridges, of_torchtitan, plain

PROJECTS = tomllib.loads(Path(__file__).with_name("shipped_models.toml").read_text())["project"]
NAMES = [each["name"] for each in PROJECTS]

NOT_SAID = ("--ffn-hidden-size", "--vocab-size")
"""Sizes that some models leave out: of dense layers that they have not, or of the tokenizer."""

BRIDGE, TITAN = checkout("BFPP_MEGATRON_BRIDGE"), checkout("BFPP_TORCHTITAN")

READERS = {(0, 2): of_bridge, (0, 3): of_bridge, (0, 4): of_bridges}
"""Readers of Megatron-Bridge's models by their first release."""


def model_named(name: str) -> Transformer:
    return published_model(name) or load_model(name)


def ours(name: str) -> Shipped:
    experiment = Experiment("1f1b", pp=1, model=model_named(name), cluster="dgx-h100")
    text = framework_config(experiment, "megatron").text
    words = text.replace("'", "").replace("\\\n", " ").split()
    flags, _ = settings_of(words[2:])
    return plain({flag: " ".join(values) or True for flag, values in flags.items()})


def shipped(text: str) -> Shipped:
    flags, _ = settings_of(text.split())
    return {flag: None if values == ("off",) else "".join(values) for flag, values in flags.items()}


def differences(project: dict[str, Any], models: Mapping[str, Shipped]) -> Iterator[str]:
    """The flags of models that differ from ours, and are not known to."""
    every = {flag for flags in models.values() for flag in flags}
    known = project.get("differs", {})
    for each in project["models"]:
        name, theirs = each["ours"], models.get(each["name"], {})
        own = ours(name)
        for flag in sorted(theirs if project.get("partly") else every if theirs else ()):
            unsaid = flag in NOT_SAID and flag not in theirs
            expected = unsaid or name in known.get(flag, {"models": ()})["models"]
            if theirs.get(flag) != own.get(flag) and not expected:
                yield f"{name}: {flag} {theirs.get(flag)}, not {own.get(flag)}"


@pytest.mark.parametrize("project", PROJECTS, ids=NAMES)
def test_our_models_are_those_that_a_framework_ships(project: dict[str, Any]) -> None:
    models = {each["name"]: shipped(each["flags"]) for each in project["models"]}
    assert list(differences(project, models)) == []


@pytest.mark.parametrize("project", PROJECTS, ids=NAMES)
def test_known_differences_are_there(project: dict[str, Any]) -> None:
    models = {each["name"]: shipped(each["flags"]) for each in project["models"]}
    found = {*differences({**project, "differs": {}}, models)}
    known = {
        f"{name}: {flag}"
        for flag, each in project.get("differs", {}).items()
        for name in each["models"]
    }
    assert {" ".join(each.split()[:2]) for each in found} == known


def test_a_flag_that_differs_is_noticed() -> None:
    project = next(each for each in PROJECTS if each["name"] == "torchtitan")
    models = {each["name"]: shipped(each["flags"]) for each in project["models"]}
    models["llama3 8B"] = {**models["llama3 8B"], "--num-layers": "33", "--new": ""}
    assert [each for each in differences(project, models) if "llama3-8b" in each] == [
        "llama3-8b: --new , not None",
        "llama3-8b: --num-layers 33, not 32",
    ]


def test_every_flavor_and_every_model_with_further_flags_is_among_them() -> None:
    compared = {each["ours"].lower() for project in PROJECTS for each in project["models"]}
    names = {model_named(each).name for each in compared}
    assert names >= {model_named(each).name for each in FLAVORS.values()}
    alike = {each.rpartition("/")[2] for each in ALIKE}
    assert names >= FURTHER.keys() - alike - {"mixtral-8x22b", "mixtral-8x7b-v0.1"}


def test_further_flags_are_of_models_with_names() -> None:
    published = {each.rpartition("/")[2] for each in (*SIZES, *ALIKE)}
    assert FURTHER.keys() <= {*preset_names("model"), *published}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(TITAN is None, reason="BFPP_TORCHTITAN names no checkout")
def test_our_models_are_those_of_a_checkout_of_torchtitan() -> None:
    (project,) = (each for each in PROJECTS if each["name"] == "torchtitan")
    assert list(differences(project, of_torchtitan(TITAN or Path()))) == []


@pytest.mark.slow
@pytest.mark.skipif(BRIDGE is None, reason="BFPP_MEGATRON_BRIDGE names no checkout")
def test_our_models_are_those_of_a_checkout_of_megatron_bridge() -> None:
    folder = BRIDGE or Path()
    text = (folder / "src/megatron/bridge/package_info.py").read_text()
    release = tuple(int(re.findall(rf"^{part} = (\d+)", text, re.M)[0]) for part in NUMBER)
    since = max(each for each in READERS if each <= release)
    (project,) = (each for each in PROJECTS if each.get("since") == [*since])
    models = READERS[since](folder)
    assert models.keys() >= {each["name"] for each in project["models"]}
    assert list(differences(project, models)) == []


NUMBER = ("MAJOR", "MINOR")
