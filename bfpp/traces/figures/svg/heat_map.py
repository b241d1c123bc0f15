"""A number for each of rows x columns as a map of colours, as SVG: replicas x pipeline ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bfpp.traces.figures.appearance import IDLE, QUIET_INK, ink
from bfpp.traces.figures.svg.elements import (
    MIDDLE,
    SMALL,
    box,
    document,
    filled,
    labels,
    text,
    text_width,
)

WIDTH, EDGE, SPACE = 720.0, 6.0, 6.0
CELL, LEAST_CELL, ROW = 34.0, 1.0, 17.0
WRITTEN_FROM = 24.0
"""The width of a cell from which on its number is written."""
LEAST_DISTANCE = 22.0
LIGHT, DARK = (255, 244, 229), (158, 32, 32)
"""Colours of the least and of the largest number."""
BARS = 40


def svg_heat_map(
    values: npt.NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    titles: tuple[str, str],
    least: float,
) -> str:
    """The map, with `titles` of rows and columns; NaN is grey, and `least` or less is lightest."""
    margin = max(text_width(each, SMALL) for each in (titles[0], *rows))
    left = EDGE + margin + SPACE
    cell = min(max((WIDTH - left - EDGE) / len(columns), LEAST_CELL), CELL)
    top = EDGE + 2 * (SMALL + SPACE)
    most = max(float(np.nanmax(values, initial=least)), least + 1e-9)
    shades = np.clip((values - least) / (most - least), 0.0, 1.0)
    body = _axes(rows, columns, titles, (left, top), cell)
    written: dict[str, list[tuple[float, float, str]]] = {}
    for row, shade_of in enumerate(shades.tolist()):
        for column, shade in enumerate(shade_of):
            x, y = left + column * cell, top + row * ROW
            colour = _colour(shade)
            body.append(filled([box(x, y, x + cell, y + ROW)], colour))
            if cell >= WRITTEN_FROM and shade == shade:
                at = x + cell / 2, y + ROW / 2 + MIDDLE * SMALL, f"{values[row, column]:.2f}"
                written.setdefault(ink(colour), []).append(at)
    body += [labels(entries, SMALL, colour) for colour, entries in written.items()]
    bottom = top + len(rows) * ROW
    body += _scale(left, bottom + SPACE, least, most)
    width = max(left + len(columns) * cell + EDGE, left + 160.0)
    title = f"{titles[0]} x {titles[1]}"
    return document(width, bottom + 3 * SPACE + SMALL, title, body)


def _axes(
    rows: Sequence[str],
    columns: Sequence[str],
    titles: tuple[str, str],
    origin: tuple[float, float],
    cell: float,
) -> list[str]:
    left, top = origin
    body = [
        text(left, EDGE + SMALL, titles[1], SMALL, ink=QUIET_INK),
        text(left - SPACE, top - SPACE / 2, titles[0], SMALL, "end", QUIET_INK),
    ]
    for row, name in enumerate(rows):
        y = top + row * ROW + ROW / 2 + MIDDLE * SMALL
        body.append(text(left - SPACE, y, name, SMALL, "end", QUIET_INK))
    every = max(1, int(np.ceil(LEAST_DISTANCE / cell)))
    named = [
        (left + (at + 0.5) * cell, top - SPACE / 2, columns[at])
        for at in range(0, len(columns), every)
    ]
    return [*body, labels(named, SMALL, QUIET_INK)]


def _scale(left: float, top: float, least: float, most: float) -> list[str]:
    """The colours from the least to the largest number."""
    body = [text(left, top + SMALL, f"{least:.2f}", SMALL, ink=QUIET_INK)]
    begin = left + text_width("0.00", SMALL) + SPACE
    for at in range(BARS):
        x = begin + at * 2
        body.append(filled([box(x, top, x + 2, top + SMALL)], _colour(at / (BARS - 1))))
    return [*body, text(begin + 2 * BARS + SPACE, top + SMALL, f"{most:.2f}", SMALL, ink=QUIET_INK)]


def _colour(shade: float) -> str:
    if shade != shade:
        return IDLE
    mixed = (light + (dark - light) * shade for light, dark in zip(LIGHT, DARK, strict=True))
    return "#" + "".join(f"{round(each):02x}" for each in mixed)
