"""Values that OmegaConf works out of others: references, variables and NeMo's arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.launchers.sources.interpolation import ARITHMETIC, interpolated

SETTINGS = {
    "name": ("llama",),
    "model.hidden": ("512",),
    "model.parts": ("a", "b"),
    "model.optim.lr": ("2e-4",),
    "model.none": ("null",),
    "trainer.nodes": ("3",),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${model.hidden}", "512"),
        ("${ model.hidden }", "512"),
        ("${.hidden}", "512"),
        ("${.optim.lr}", "2e-4"),
        ("${..trainer.nodes}", "3"),
        ("${training.model.hidden}", "512"),
        ("${name}_${trainer.nodes}x", "llama_3x"),
        ("${model.none}", "null"),
        ("${multiply:4, ${.hidden}}", "2048"),
        ("${multiply:${trainer.nodes}, ${multiply:2,${.hidden}}}", "3072"),
        ("${divide:${.hidden}, 3}", str(512 / 3)),
        ("${divide:${.hidden},2}", "256"),
        ("${divide_ceil:${.hidden}, 3}", "171"),
        ("${divide_floor:${.hidden}, 3}", "170"),
        ("${int_div:7,2}", "3"),
        ("${int_multiply:${.hidden}, 1.5}", "768"),
        ("${add:1,2,3}", "6"),
        ("${oc.env:SET}", "value"),
        ("${oc.env:NOT_SET,4}", "4"),
        ("${oc.env:NOT_SET,'a'}/${env:SET}", "a/value"),
        ("${multiply:${oc.env:NODES},8}", "16"),
    ],
)
def test_values_are_those_of_omegaconf(text: str, expected: str) -> None:
    environment = {"SET": "value", "NODES": "2"}
    known, unknown = interpolated({**SETTINGS, "model.it": (text,)}, environment)
    assert (known["model.it"], unknown) == ((expected,), {})


def test_a_list_that_is_referred_to_is_a_list() -> None:
    known, _ = interpolated({**SETTINGS, "model.it": ("${.parts}",), "more": ("${name}", "x")}, {})
    assert known["model.it"] == ("a", "b")
    assert known["more"] == ("llama", "x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${model.nowhere}", "model.nowhere is no setting of the file"),
        ("${model.optim}", "model.optim is no setting of the file"),
        ("${data_dir}/x", "data_dir is no setting of the file"),
        ("${.it}", "refers to itself"),
        ("${ours:1,2}", "ours: a resolver that is not known"),
        ("${now:%Y-%m-%d}", "now: a resolver that is not known"),
        ("${oc.env:NOT_SET}", "depends on $NOT_SET, which is not set"),
        ("${oc.env:NOT_SET,null}", "depends on $NOT_SET, which is not set"),
        ("${multiply:2,${name}}", "multiply: 'llama' is no number"),
        ("${multiply:2}", "multiply: cannot be worked out of 2"),
        ("${divide:2,0}", "divide: cannot be worked out of 2,0"),
        ("${model.hidden", "a bracket is not closed"),
        ("${}", "'' is no reference"),
        ("${name}" * 500, "is longer than 2,000 letters"),
    ],
)
def test_what_cannot_be_worked_out_is_as_it_is_written(text: str, reason: str) -> None:
    known, unknown = interpolated({**SETTINGS, "model.it": (text,)}, {})
    assert (known["model.it"], unknown) == ((text,), {"model.it": reason})


def test_values_that_double_are_bounded() -> None:
    doubled = {f"a{at}": (f"${{a{at + 1}}}${{a{at + 1}}}",) for at in range(100)}
    known, unknown = interpolated({**doubled, "a100": ("x" * 100,)}, {})
    assert len(unknown) > 50
    assert max(len(words[0]) for words in known.values()) <= 4000


@given(st.text("${}:.,' ab1" + "\n", max_size=30), st.sampled_from(sorted(ARITHMETIC)))
def test_any_text_is_worked_out_or_left(text: str, resolver: str) -> None:
    for each in (text, f"${{{resolver}:{text}}}"):
        known, unknown = interpolated({"a.b": (each,), "a.c": ("1",)}, {})
        assert known["a.b"] != (each,) or "a.b" in unknown or "${" not in each
