"""Which layers of a model each stage has."""

from __future__ import annotations

from itertools import pairwise

from bfpp.schedules.invalid import InvalidConfiguration


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
