"""Figures for print: drawn once, as SVG, and written as that, as PDF or as PNG.

CairoSVG converts them, so that letters and lines are the same in all three; drawn again by a
plotting library, they would not be.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from struct import pack
from zlib import crc32

from bfpp.formats import PDF, PDF_MARK, PNG, PNG_MARK, SVG, FileFormat
from bfpp.numbers_given import length
from bfpp.outputs import Output, add_output

FIGURES = (SVG, PDF, PNG)

PIXELS = 300
"""Pixels per inch of a PNG: what journals ask for pictures with text."""

CSS_PIXELS = 96
"""Pixels per inch of an SVG."""

INCH = 0.0254
HEADER = 33
"""Bytes of a PNG before its second chunk."""


def add_figure(group: argparse._ActionsContainer, option: str, purpose: str) -> None:
    """An option that names a figure to write."""
    add_output(group, option, FIGURES, f"{purpose}, as .svg, .pdf or .png by its name")


def add_width_argument(group: argparse._ActionsContainer, purpose: str) -> None:
    """How wide figures are in print."""
    group.add_argument(
        "--width",
        type=length,
        metavar="LENGTH",
        help=f"{purpose}, such as 84mm for a column; letters keep their size (default: a page's)",
    )


def write_figure(figure: Output, svg: str) -> None:
    """Write a figure in the format of its name."""
    with figure.written() as path:
        WRITERS[figure.format](svg, path)


def converted(figure: Path, format_: FileFormat) -> Path:
    """Write an SVG in another format too, in the same folder; the new file."""
    path = figure.with_suffix(format_.suffixes[0])
    WRITERS[format_](figure.read_text(encoding="utf-8"), path)
    return path


def _write_svg(svg: str, path: Path) -> None:
    path.write_text(svg, encoding="utf-8", newline="\n")


def _write_pdf(svg: str, path: Path) -> None:
    from cairosvg import svg2pdf

    path.write_bytes(svg2pdf(svg.encode()) + PDF_MARK + b"\n")


def _write_png(svg: str, path: Path) -> None:
    from cairosvg import svg2png

    picture = svg2png(svg.encode(), scale=PIXELS / CSS_PIXELS)
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
