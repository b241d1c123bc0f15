"""Figures for print: drawn once, as SVG, and written as that, as PDF or as PNG.

CairoSVG converts them, so that letters and lines are the same in all three; drawn again by a
plotting library, they would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING
from zlib import crc32

from bfpp.schedules import InvalidInput
from bfpp.terminal.formats import PDF, PDF_MARK, PNG, PNG_MARK, SVG, FileFormat
from bfpp.terminal.outputs import require_installed

if TYPE_CHECKING:
    from bfpp.traces.figures.panel import Panel  # start-up time

FIGURES = (SVG, PDF, PNG)

PIXELS = 300
"""Pixels per inch of a PNG, as journals require for pictures with text."""

CSS_PIXELS = 96
"""Pixels per inch of an SVG."""

INCH = 0.0254
HEADER = 33
"""Bytes of a PNG before its second chunk."""


def write_svg(panels: Sequence[Panel], path: Path | str, points: float | None = None) -> None:
    """Write timelines below each other as a figure for print: .svg, .pdf or .png by its name.

    Given a width in points (1/72 inch), it is that of the print, and letters keep their size: a
    column of 84 mm has 84 / 25.4 * 72 of them. Raises `InvalidInput` for another name, and where
    what converts the figure is not installed.

    >>> import bfpp, tempfile
    >>> panel = bfpp.Panel("GPipe", bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline)
    >>> with tempfile.NamedTemporaryFile(suffix=".svg") as file:
    ...     bfpp.write_svg([panel], file.name, points=84 / 25.4 * 72)
    """
    path = Path(path)
    named = [each for each in FIGURES if path.name.endswith(each.suffixes)]
    if not named:
        endings = " or ".join(ending for each in FIGURES for ending in each.suffixes)
        raise InvalidInput(f"path: must end in {endings}, not {path.name!r}")
    require_installed("path", named[0])
    from bfpp.traces.figures.svg.schedule import svg  # start-up time

    WRITERS[named[0]](svg(panels, points), path)


def converted(figure: Path, format_: FileFormat) -> Path:
    """Write an SVG in another format too, in the same folder; the new file."""
    path = figure.with_suffix(format_.suffixes[0])
    WRITERS[format_](figure.read_text(encoding="utf-8"), path)
    return path


def _write_svg(drawn: str, path: Path) -> None:
    path.write_text(drawn, encoding="utf-8", newline="\n")


def _write_pdf(drawn: str, path: Path) -> None:
    from cairosvg import svg2pdf

    path.write_bytes(svg2pdf(drawn.encode()) + PDF_MARK + b"\n")


def _write_png(drawn: str, path: Path) -> None:
    from cairosvg import svg2png

    picture = svg2png(drawn.encode(), scale=PIXELS / CSS_PIXELS)
    a_metre = round(PIXELS / INCH)
    chunks = _chunk(b"pHYs", pack(">IIB", a_metre, a_metre, 1)) + _chunk(b"tEXt", PNG_MARK)
    path.write_bytes(picture[:HEADER] + chunks + picture[HEADER:])


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return pack(">I", len(content)) + kind + content + pack(">I", crc32(kind + content))


WRITERS: dict[FileFormat, Callable[[str, Path], None]] = {
    SVG: _write_svg,
    PDF: _write_pdf,
    PNG: _write_png,
}
