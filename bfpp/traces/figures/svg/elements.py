"""The few SVG elements that figures are made of, as text.

Foreign text goes through `escaped` wherever it is drawn: XML has no way to
write most control characters, so they become U+FFFD, the replacement character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from itertools import accumulate
from math import fsum
from typing import NamedTuple

from bfpp.traces.figures.appearance import DARK_INK

NAMESPACE = "http://www.w3.org/2000/svg"
FONTS = "Helvetica, Arial, 'Liberation Sans', 'Nimbus Sans', sans-serif"
WIDTHS = {"iIjl.,:;'|! ": 0.27, "frt()[]-": 0.34, "mwMW%": 0.85, "0123456789": 0.556}
OTHER_WIDTH, CAPITAL_WIDTH = 0.53, 0.69
"""About how wide characters are, as shares of the font size."""

SMALL = 7.5
"""Font size of all but titles."""

MIDDLE = 0.36
"""From the middle of a line of text down to its baseline, as a share of the font size."""

LEADING = 1.2
"""From one baseline to the next, as a share of the font size."""

MOST_LINES = 3

SPACES = re.compile(r"(?<!\d)\s+")
"""Spaces at which a line may break."""

NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escaped(content: str) -> str:
    """The content as XML text."""
    return escape(_allowed(content), quote=False)


def _allowed(content: str) -> str:
    return NOT_IN_XML.sub("\ufffd", content)


def number(value: float) -> str:
    """A coordinate to a hundredth, as short as it goes."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(content: str, size: float) -> float:
    """About how wide the content is."""
    return size * fsum(map(_character_width, content))


@cache
def _character_width(character: str) -> float:
    for characters, width in WIDTHS.items():
        if character in characters:
            return width
    return CAPITAL_WIDTH if character.isupper() else OTHER_WIDTH


def shortened(content: str, size: float, width: float) -> str:
    """The content, or as much of its beginning as fits in the width."""
    if text_width(content, size) <= width:
        return content
    widths = accumulate((text_width(character, size) for character in content), initial=size)
    fitting = sum(reached <= width for reached in widths) - 1
    return content[: max(fitting, 0)].rstrip() + "…"


def wrapped(content: str, size: float, width: float, reserved: float = 0.0) -> list[str]:
    """The content in lines that fit in the width, or as much of it as `MOST_LINES` hold.

    The first leaves `reserved` free. A number stays with what it counts: `8
    micro-batches`.
    """
    words, lines = SPACES.split(content.strip()), [""]
    rooms = [width - reserved, *[width] * (MOST_LINES - 1)]
    for at, word in enumerate(words):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or text_width(longer, size) <= rooms[len(lines) - 1]:
            lines[-1] = longer
        elif len(lines) < MOST_LINES:
            lines.append(word)
        else:
            lines[-1] = " ".join([lines[-1], *words[at:]])
            break
    return [shortened(line, size, room) for line, room in zip(lines, rooms, strict=False)]


def heading(x: float, y: float, lines: Sequence[str], size: float) -> tuple[list[str], float]:
    """Lines of text below one another, the first on the baseline `y`; and the last's baseline."""
    baselines = [y + number * LEADING * size for number in range(len(lines))]
    drawn = [text(x, at, line, size) for at, line in zip(baselines, lines, strict=True)]
    return drawn, baselines[-1]


def text(
    x: float, y: float, content: str, size: float, anchor: str = "start", ink: str = DARK_INK
) -> str:
    """One line of text on the baseline `y`."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" '
        f'text-anchor="{anchor}" fill="{ink}">{escaped(content)}</text>'
    )


def labels(entries: Iterable[tuple[float, float, str]], size: float, ink: str) -> str:
    """Many short texts of one size and ink, each centred on its x."""
    inside = "".join(
        f'<text x="{number(x)}" y="{number(y)}">{escaped(content)}</text>'
        for x, y, content in entries
    )
    return f'<g font-size="{number(size)}" text-anchor="middle" fill="{ink}">{inside}</g>'


class Sample(NamedTuple):
    """An entry of a legend: `draw` gives its elements at an x and a baseline, the name follows."""

    name: str
    draw: Callable[[float, float], list[str]]
    width: float


def legend(
    samples: Iterable[Sample],
    left: float,
    baseline: float,
    right: float,
    leading: float,
    gap: float = 12.0,
) -> tuple[list[str], float, float]:
    """Samples with their names, in lines that fit; where the next would go, and its baseline."""
    body, x = list[str](), left
    for name, draw, width in samples:
        if x > left and x + width + text_width(name, SMALL) > right:
            x, baseline = left, baseline + leading
        body += [*draw(x, baseline), text(x + width, baseline, name, SMALL)]
        x += width + text_width(name, SMALL) + gap
    return body, x, baseline


def moved(right: float, down: float, body: list[str]) -> list[str]:
    """The elements as a group, moved."""
    return [f'<g transform="translate({number(right)} {number(down)})">', *body, "</g>"]


def box(left: float, top: float, right: float, bottom: float) -> str:
    """A rectangle, as a piece of a path; where two share an edge, they share its rounding."""
    return f"M{number(left)} {number(top)}H{number(right)}V{number(bottom)}H{number(left)}z"


def filled(pieces: Sequence[str], colour: str) -> str:
    """One path of many pieces; its edges are not blurred, so neighbours leave no seam."""
    return f'<path shape-rendering="crispEdges" fill="{colour}" d="{"".join(pieces)}"/>'


def stroked(pieces: Sequence[str], colour: str, width: float, **attributes: str) -> str:
    """One line of many pieces."""
    more = "".join(
        f' {name.replace("_", "-")}="{escape(value)}"' for name, value in attributes.items()
    )
    return (
        f'<path fill="none" stroke="{colour}" stroke-width="{number(width)}"{more} '
        f'd="{"".join(pieces)}"/>'
    )


def document(width: float, height: float, title: str, body: Iterable[str], unit: str = "") -> str:
    """A whole SVG file, white behind; a user unit is a CSS pixel, or one `unit`."""
    size = f'width="{number(width)}{unit}" height="{number(height)}{unit}"'
    view = f'viewBox="0 0 {number(width)} {number(height)}"'
    return "\n".join(
        [
            f'<svg xmlns="{NAMESPACE}" {size} {view} role="img" font-family="{FONTS}">',
            "<!-- generator: bfpp -->",
            f"<title>{escaped(title)}</title>",
            f'<rect width="{number(width)}" height="{number(height)}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )
