"""Cut of a model's layers into stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.framework_cuts import (
    is_layout,
    is_modules,
    layers_of,
    named_stages,
    read_layout,
    read_modules,
)


class Balance(StrEnum):
    """The quantity whose maximum over ranks a cut minimizes."""

    TIME = "time"
    MEMORY = "memory"


def cut_layers(
    layers: int, stages: int, attached: tuple[int, int] = (0, 0), *, own_ends: bool = False
) -> list[range]:
    """The layers of each stage: as equal as can be, the later stages not larger.

    `attached` layers at the start and at the end (embedding, output) do not
    count: they go to the first and the last stage or, with `own_ends`, are
    stages of their own. Raises `InvalidConfiguration` if a stage would have no
    layer.
    """
    before, after = attached
    inner = layers - before - after
    own = (own_ends and before > 0, own_ends and after > 0)
    shared = stages - sum(own)
    if shared < 1 or inner < shared:
        room = f", {sum(own)} of them for the embedding and the output" if any(own) else ""
        raise InvalidConfiguration(
            "layers", f"{inner} layers cannot be divided over {stages} stages{room}"
        )
    share, larger = divmod(inner, shared)
    borders = [before + number * share + min(number, larger) for number in range(shared + 1)]
    if not own[0]:
        borders[0] = 0
    if not own[1]:
        borders[-1] = layers
    if own[0]:
        borders.insert(0, 0)
    if own[1]:
        borders.append(layers)
    return [range(*pair) for pair in pairwise(borders)]


def even_cut(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each stage: as equal as can be, the later ones not larger."""
    share, larger = divmod(layers, stages)
    return (share + 1,) * larger + (share,) * (stages - larger)


def _fewer_at_the_ends(layers: int, stages: int) -> tuple[int, ...]:
    """An even cut that counts the embedding and the output head as a layer each."""
    if stages == 1:
        return (layers,)
    first, *inner, last = even_cut(layers + 2, stages)
    return (first - 1, *inner, last - 1)


CUTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "even": even_cut,
    "fewer-at-ends": _fewer_at_the_ends,
}
"""Rules for the number of layers of each stage."""


def given_cut(cut: str, predictions: int = 0) -> tuple[int, ...] | None:
    """The layers of each stage that a text gives; None for a rule's name.

    A list such as `7,8,8,7`, a layout of Megatron-LM's with as many `predictions`, or
    torchtitan's names of modules.
    """
    if cut in CUTS:
        return None
    if is_layout(cut):
        return layers_of(read_layout(cut), predictions)
    if is_modules(cut):
        return layers_of(read_modules(cut))
    if not _LIST.fullmatch(cut):
        raise InvalidConfiguration(
            "cut",
            f"{cut!r} is neither one of {', '.join(CUTS)}, nor numbers of layers (7,8,8,7), nor "
            "Megatron-LM's layout (Et*7|(t*8|)*2t*7L), nor torchtitan's lists of names",
        )
    return tuple(int(count) for count in cut.split(","))


def stages_of(cut: str) -> int | None:
    """Number of stages that a text gives, valid or not; None for a rule's name."""
    if cut in CUTS:
        return None
    if is_layout(cut):
        return len(read_layout(cut))
    return len(named_stages(cut)) if is_modules(cut) else cut.count(",") + 1


def cut_of(cut: str, layers: int, stages: int, predictions: int = 0) -> tuple[int, ...]:
    """The layers of each stage by a rule's name or by a text.

    Raises `InvalidConfiguration` for a text of other stages or layers.
    """
    if (given := given_cut(cut, predictions)) is None:
        return CUTS[cut](layers, stages)
    if len(given) != stages or sum(given) != layers:
        raise InvalidConfiguration(
            "cut",
            f"{len(given)} stages of {sum(given)} layers are not {stages} stages of {layers}",
        )
    return given


_LIST = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
