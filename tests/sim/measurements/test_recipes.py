"""NVIDIA's published recipes: each is an experiment file, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bfpp.options.experiment_file import read_experiment
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.measurements.recipes import recipes
from bfpp.sim.models.model import load_model
from tests.helpers import ROOT

FOLDER = ROOT / "examples" / "recipes"
EVERY = list(recipes())
SAID = [each for each in EVERY if each.refusal is None]


def test_all_are_there_and_those_with_mamba_layers_are_refused_by_name():
    assert len(EVERY) == 268
    refused = [each for each in EVERY if each.mamba]
    assert len(refused) == 51
    for each in refused:
        with pytest.raises(InvalidConfiguration, match=f"{each.model} has Mamba layers"):
            _ = each.experiment
    assert len(SAID) == 217
    assert len({each.name for each in EVERY}) == len(EVERY)


def test_files_are_what_the_facts_say():
    files = {path.stem: path for path in FOLDER.glob("*.toml")}
    assert set(files) == {each.name for each in SAID}
    for each in SAID:
        text = files[each.name].read_text(encoding="utf-8")
        assert text == each.text
        assert f"{each.tokens_per_second_per_gpu:g} tokens/s" in text
        assert "assumed" in text


@pytest.mark.parametrize("recipe", SAID, ids=lambda recipe: recipe.name)
def test_a_file_is_the_experiment_on_as_many_devices_with_as_large_a_batch(recipe):
    experiment = read_experiment(str(FOLDER / f"{recipe.name}.toml"))
    assert experiment.record == recipe.experiment.record
    configuration = experiment.configuration
    assert configuration.degrees.devices == recipe.gpus
    assert configuration.batch == recipe.batch
    physical = experiment.require_physical()
    physical.layers(configuration.layout)
    assert physical.model.sequence == recipe.seq_length


def test_what_is_assumed_is_never_what_is_published():
    for each in SAID:
        assert not each.published.keys() & each.assumed.keys()


def test_llama_in_8_bits_takes_as_long_as_published():
    """On H100; nothing was fitted to these runs, of which some are a recipe's over the years.

    Predicted are 1.3 % to 12.1 % more tokens.
    """
    models = ("LLAMA3.1_405B", "LLAMA3_70B")
    runs = [each for each in SAID if each.family in models and each.system == "DGX-H100"]
    assert len(runs) == 11
    assert all(each.precision.startswith("FP8") for each in runs)
    tokens, more = {}, []
    for each in runs:
        said = str(each.published)
        if said not in tokens:
            physical = each.experiment.require_physical()
            timeline = simulate(each.experiment.graph(), physical)
            tokens[said] = predict(timeline, physical)["tokens_per_second_per_gpu"]
        more.append(100 * (tokens[said] / each.tokens_per_second_per_gpu - 1))
    assert len(tokens) == 4
    assert more == pytest.approx([2.0, 1.3, 1.3, 3.2, 2.8, 6.9, 4.0, 12.1, 3.7, 8.4, 2.6], abs=0.1)


def test_the_small_qwen_has_the_published_parameters():
    """Qwen3 Technical Report, table 2: 30.5 B, 3.3 B for a token."""
    model = load_model("qwen3-30b-a3b")
    assert model.parameters == pytest.approx(30.5e9, rel=0.002)
    assert model.active_parameters == pytest.approx(3.3e9, rel=0.02)


def test_deepseek_may_be_trained_without_its_prediction_module():
    whole = Experiment("1f1b", model="deepseek-v3")
    assert whole.transformer == load_model("deepseek-v3")
    without = replace(whole, prediction=False).transformer
    assert without == replace(whole.transformer, prediction_modules=0)
    said = {each.published.get("prediction", True) for each in EVERY if "w/o MTP" in each.model}
    assert said == {False}
