"""Cuts as Megatron-LM and torchtitan write them.

What texts mean is what their own readers make of them: Megatron-LM's
`PipelineParallelLayerLayout.parse_str_to_list`, torchtitan's `_generate_llm_fqn_per_model_part`.
"""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.options.experiment_file import read_experiment
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.layout.cut import CUTS, cut_of, given_cut
from bfpp.schedules.layout.framework_cuts import layers_of, layout_text, module_names, read_layout
from bfpp.sim.experiment.experiment import Experiment

MODEL = "--model llama3-8b --cluster dgx-h100 --implementation current --microbatches 4"


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|(tt|)*29,m|L", ["Ettt", *["tt"] * 29, "m", "L"]),
        ("Ettt|(tt|)*2m|L", ["Ettt", "tt", "tt", "m", "L"]),
        ("E|t*3|(t|)*5mL", ["E", "ttt", *["t"] * 5, "mL"]),
        ("Et*2|(tt|)*5t|tmL", ["Ett", *["tt"] * 5, "t", "tmL"]),
        ("E||t|L", ["E", "", "t", "L"]),
        ("E(|t)*2,tL", ["E", "t", "ttL"]),
        ("E(t|t*2)*2|L", ["Et", "ttt", "tt", "L"]),
    ],
)
def test_a_layout_means_what_megatron_lm_makes_of_it(text, stages):
    assert read_layout(text) == stages


@pytest.mark.parametrize(
    ("layers", "stages", "names"),
    [
        (3, 1, [["tok_embeddings", "layers.0", "layers.1", "layers.2", "norm", "lm_head"]]),
        (
            6,
            4,
            [
                ["tok_embeddings", "layers.0"],
                ["layers.1", "layers.2"],
                ["layers.3", "layers.4"],
                ["layers.5", "norm", "lm_head"],
            ],
        ),
        (
            7,
            4,
            [
                ["tok_embeddings", "layers.0", "layers.1"],
                ["layers.2", "layers.3"],
                ["layers.4", "layers.5"],
                ["layers.6", "norm", "lm_head"],
            ],
        ),
    ],
)
def test_torchtitan_cuts_with_fewer_layers_at_the_ends(layers, stages, names):
    """By default it counts the embedding and the head as a layer each."""
    assert module_names(CUTS["fewer-at-ends"](layers, stages)) == names
    assert given_cut(str(names)) == given_cut(json.dumps(names))


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 2))
def test_what_is_written_is_read_again(layers, predictions):
    text = layout_text(layers, predictions)
    assert given_cut(text, predictions) == tuple(layers)
    assert [stage.count("t") for stage in read_layout(text)] == layers
    names = module_names(layers)
    assert given_cut(json.dumps(names)) == tuple(layers)
    starts = [0, *accumulate(layers)]
    for stage, start, count in zip(names, starts, layers, strict=False):
        assert [f"layers.{start + number}" for number in range(count)] == [
            name for name in stage if name.startswith("layers.")
        ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Et|x|L", "'x' is none of E"),
        ("E(t*99999)*99999L", "repetitions of more than"),
        ("E(t|)*0|L|t", "must consist of E, layers, L"),
        ("Et|tm|L", "must consist of E, layers, L"),
        ("EtL|", "the last stage has no L"),
        ("[[[", "not a list with the module names"),
        ("[1]", "not a list with the module names"),
        ("[['tok_embeddings', 'layers.1'], ['lm_head']]", "must be 0, 1, 2"),
        ("[['tok_embeddings', 'layer.0'], ['lm_head']]", "there is no module 'layer.0'"),
        ("[['tok_embeddings', 'norm'], ['lm_head']]", "norm must be in the last stage"),
        ("7,8,", "neither one of even, fewer-at-ends, nor numbers"),
        ("Et|tt|L", "3 stages of 3 layers are not 2 stages of 4"),
    ],
)
def test_what_cannot_be_a_cut_is_refused(text, reason):
    with pytest.raises(InvalidConfiguration, match=reason):
        cut_of(text, 4, 2)


def test_prediction_modules_are_beside_the_head():
    with pytest.raises(InvalidConfiguration, match="m and L in the last"):
        layers_of(read_layout("Et*3|(tt|)*29,m|L"), predictions=1)


def test_a_layout_says_how_often_stages_loop(answer, bfpp, tmp_path):
    text = "Et*3|(t*4|)*6t*5L"
    record = answer(f"simulate depth-first {MODEL} --pp 4 --cut {text}")
    assert record["layers_of_stages"] == [3, 4, 4, 4, 4, 4, 4, 5]
    assert record["megatron_layout"] == text
    assert record["schedule"] == "depth-first"
    same = Experiment("depth-first", pp=4, loops=2, microbatches=4, cut=text, model="llama3-8b")
    assert same.configuration.layout == same.changed(loops=None).configuration.layout
    path = tmp_path / "e.toml"
    names = json.dumps(record["torchtitan_modules"])
    code, out, _ = bfpp(
        "experiment", "depth-first", *MODEL.split(), "--pp", "4", "--cut", names,
        "--out", str(path),
    )  # fmt: skip
    assert code == 0
    assert f'--pipeline-model-parallel-layout "{text}"' in out
    assert f"module_fqns_per_model_part = {names}" in out
    code, out, _ = bfpp("experiment", "depth-first", *MODEL.split(), "--pp", "4", "--loops", "2")
    assert (code, "#" in out) == (0, False)
    assert answer(f"simulate {path}") == record
    assert read_experiment(str(path)).layers_of_stages == (3, 4, 4, 4, 4, 4, 4, 5)
