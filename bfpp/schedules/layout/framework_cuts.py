"""Cuts as Megatron-LM's pipeline layouts and as torchtitan's lists of module names.

Both are read to a text for each stage, in Megatron-LM's letters, and written from the number of
layers in each. The embedding is in the first stage, the head and any prediction modules in the
last; a stage between may have no layer.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Sequence
from itertools import groupby

from bfpp.schedules.errors import InvalidConfiguration

FIELD = "cut"

EMBEDDING, LAYER, PREDICTION, HEAD = "EtmL"
"""Megatron-LM's letters for the modules of stages."""

OLDER_HEAD = "output"

MODULES = {"tok_embeddings": EMBEDDING, "norm": "", "lm_head": HEAD, OLDER_HEAD: HEAD}
"""torchtitan's names of modules that occur once; older models have another name of the head."""

LONGEST = 100_000
"""Characters that a layout may have when its repetitions are written out."""

_GROUP = re.compile(r"\(([^()]+)\)\*([0-9]{1,6})")
_LETTER = re.compile(r"(.)\*([0-9]{1,6})")
_LAYER_NAME = re.compile(r"layers\.([0-9]{1,6})")


def is_layout(text: str) -> bool:
    """True for a layout of Megatron-LM's, valid or not."""
    return text.startswith(EMBEDDING)


def is_modules(text: str) -> bool:
    """True for torchtitan's lists of names, valid or not."""
    return text.startswith("[")


def read_layout(text: str) -> list[str]:
    """The letters of each stage of `Et*3|(tt|)*29|mL`; commas are ignored."""
    letters = text.replace(",", "")
    for repeated in (_GROUP, _LETTER):
        repetitions = repeated.findall(letters)
        if sum(len(each) * int(count) for each, count in repetitions) > LONGEST:
            raise InvalidConfiguration(FIELD, f"repetitions of more than {LONGEST:,} letters")
        letters = repeated.sub(lambda match: match[1] * int(match[2]), letters)
    for letter in letters:
        if letter not in f"{EMBEDDING}{LAYER}{PREDICTION}{HEAD}|":
            raise InvalidConfiguration(
                FIELD,
                f"{letter!r} is none of E (embedding), t (layer), m (prediction), L (head), |",
            )
    return letters.split("|")


def named_stages(text: str) -> list[list[str]]:
    """The module names in torchtitan's lists, not validated."""
    try:
        stages = literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        stages = None
    if not isinstance(stages, list) or not all(isinstance(stage, list) for stage in stages):
        raise InvalidConfiguration(FIELD, "is not a list with the module names of each stage")
    return [list(map(str, stage)) for stage in stages]


def read_modules(text: str) -> list[str]:
    """The letters of each stage of `[["tok_embeddings", "layers.0"], ["layers.1", "lm_head"]]`."""
    stages = named_stages(text)
    if any("norm" in stage for stage in stages[:-1]):
        raise InvalidConfiguration(FIELD, "norm must be in the last stage, with lm_head")
    numbers = [
        int(match[1])
        for stage in stages
        for name in stage
        if (match := _LAYER_NAME.fullmatch(name))
    ]
    if numbers != list(range(len(numbers))):
        raise InvalidConfiguration(FIELD, "layers must be 0, 1, 2, ... in this order")
    return ["".join(map(_letter, stage)) for stage in stages]


def _letter(name: str) -> str:
    if _LAYER_NAME.fullmatch(name):
        return LAYER
    if name not in MODULES:
        known = ", ".join(("layers.N", *MODULES))
        raise InvalidConfiguration(FIELD, f"there is no module {name[:40]!r}: {known}")
    return MODULES[name]


def layers_of(stages: Sequence[str], predictions: int = 0) -> tuple[int, ...]:
    """The number of layers of each stage; raises `InvalidConfiguration` for another order."""
    whole = "".join(stages)
    layers = whole.count(LAYER)
    if whole != EMBEDDING + LAYER * layers + PREDICTION * predictions + HEAD:
        expected = f"E, layers, {predictions} m, L" if predictions else "E, layers, L"
        raise InvalidConfiguration(FIELD, f"stages must consist of {expected}, in this order")
    if EMBEDDING not in stages[0] or stages[-1].count(PREDICTION) != predictions:
        raise InvalidConfiguration(
            FIELD, "costs are known only with E in the first stage, and m and L in the last"
        )
    if HEAD not in stages[-1]:
        raise InvalidConfiguration(FIELD, "the last stage has no L")
    return tuple(stage.count(LAYER) for stage in stages)


def layout_text(layers: Sequence[int], predictions: int = 0) -> str:
    """Megatron-LM's `--pipeline-model-parallel-layout` for these numbers of layers in the stages.

    >>> layout_text([3, 2, 2, 2, 1], predictions=1)
    'Et*3|(tt|)*3tmL'
    """
    stages = [_repeated(LAYER, count) for count in layers]
    stages[0] = EMBEDDING + stages[0]
    stages[-1] += _repeated(PREDICTION, predictions) + HEAD
    *before, last = stages
    runs = ((f"{stage}|", len(list(alike))) for stage, alike in groupby(before))
    return "".join(f"({run})*{count}" if count > 1 else run for run, count in runs) + last


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 2 else letter * count


def module_names(layers: Sequence[int], *, head: str = "lm_head") -> list[list[str]]:
    """The `module_fqns_per_model_part` of torchtitan for these numbers of layers in the stages.

    Before 0.3, its name of the `head` was `OLDER_HEAD`.
    """
    names = iter([f"layers.{layer}" for layer in range(sum(layers))])
    stages = [[next(names) for _ in range(count)] for count in layers]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", head]
    return stages
