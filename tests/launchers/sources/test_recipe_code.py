"""Recipes are read, never run; what is plain in them has a meaning."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.published.models import ALIKE, SIZES, published_model
from bfpp.launchers.sources.recipe_code import DEEPEST, filled
from bfpp.schedules import InvalidConfiguration
from tests.helpers.launch_recipe import NAME, RECIPE


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("llama.py").write_text(RECIPE)
    return f"llama.py:{NAME}"


def test_a_recipe_is_what_its_function_fills(recipe: str) -> None:
    launch = read_launch_file(recipe)
    experiment = launch.experiment
    assert launch.framework == "Megatron-Bridge"
    assert experiment.cluster == "dgx-h100"
    degrees = {"pp": 2, "tp": 2, "cp": 1, "dp": 4, "microbatch_size": 2, "microbatches": 8}
    assert {name: getattr(experiment, name) for name in degrees} == degrees
    assert experiment.transformer.sequence == 8192
    assert experiment.layers_of_stages == (17, 15)
    assert (experiment.precision, experiment.recompute) == ("fp8-current", "full")
    assert (experiment.sharding, experiment.tp_overlap) == ("partial", "chunked")
    left_out = {each.name: each for each in launch.ignored if each.matters}
    assert left_out["--invented-setting"].reason == "not known to bfpp"
    lines = {each.value for each in launch.ignored if each.name.startswith("line")}
    assert lines == {"Path('made').write_text('run')", "for name in ('a', 'b'):"}
    assert {"checkpoint"} <= {each.name for each in launch.ignored}


def test_a_recipe_is_never_run(recipe: str, bfpp: Any) -> None:
    code, out, error = bfpp(f"simulate {recipe} --json")
    assert (code, error) == (0, "")
    assert '"understood"' in out
    assert not Path("made").exists()
    code, _, error = bfpp("simulate llama.py:missing")
    assert code == 2
    assert "llama.py has no function missing; it has llama3_8b_pretrain" in error
    assert not Path("made").exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1", "returns no configuration that is plain"),
        ("raise ValueError", "f raises an error"),
        ("return f()", "returns no configuration that is plain"),
        ("x = [0] * 10 ** 9\n    return x", "returns no configuration that is plain"),
        ("return (", "is not Python"),
    ],
)
def test_what_is_no_recipe_is_refused(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(f"import megatron.bridge\n\n\ndef f():\n    {body}\n")
    with pytest.raises(InvalidConfiguration, match=reason):
        filled("f.py", "f")


@pytest.mark.parametrize("between", [DEEPEST - 2, DEEPEST - 1])
def test_functions_are_followed_as_deep_as_is_said(
    between: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's own function calls others, which are the last that are followed, or too deep."""
    monkeypatch.chdir(tmp_path)
    names = [*(f"f{number}" for number in range(between + 1)), NAME]
    calls = (f"\n\ndef {one}():\n    return {other}()\n" for one, other in pairwise(names))
    Path("deep.py").write_text(RECIPE + "".join(calls))
    if between < DEEPEST - 1:
        assert read_launch_file("deep.py:f0").experiment.pp == 2
    else:
        with pytest.raises(InvalidConfiguration, match="returns no configuration that is plain"):
            read_launch_file("deep.py:f0")


PARAMETERS = {
    "meta-llama/llama-3.2-1b": 1.24, "meta-llama/llama-3.2-3b": 3.21,
    "mistralai/mixtral-8x7b-v0.1": 46.7, "qwen/qwen2-0.5b": 0.494, "qwen/qwen2-1.5b": 1.54,
    "qwen/qwen2-7b": 7.62, "qwen/qwen2-72b": 72.7, "qwen/qwen2.5-14b": 14.8,
    "qwen/qwen2.5-32b": 32.8, "qwen/qwen3-0.6b": 0.6, "qwen/qwen3-1.7b": 1.72,
    "qwen/qwen3-4b": 4.02, "qwen/qwen3-8b": 8.19, "qwen/qwen3-14b": 14.8, "qwen/qwen3-32b": 32.8,
    "deepseek-ai/deepseek-v2-lite": 15.7, "moonshotai/moonlight-16b-a3b": 16.0,
    "moonshotai/kimi-k2-instruct": 1026.0, "openai/gpt-oss-20b": 20.9, "zai-org/glm-4.5": 353.0,
    "zai-org/glm-4.5-air": 107.0, "google/gemma-2-2b": 2.61, "google/gemma-2-9b": 9.24,
    "google/gemma-2-27b": 27.2, "allenai/olmoe-1b-7b-0125": 6.92,
}  # fmt: skip
"""Billions of parameters, as published with the models."""


@pytest.mark.parametrize("name", SIZES)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    model = published_model(name)
    assert model is not None
    if "=" in SIZES[name]:
        assert model.parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.02)
    else:
        assert model.name == SIZES[name]


def test_models_alike_are_known() -> None:
    assert all(published_model(name) for name in ALIKE)
    assert published_model("somebody/elses") is None
