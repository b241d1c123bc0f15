"""Figures for print as PDF and PNG: of the width that was asked for, and known as ours."""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from struct import unpack
from xml.etree import ElementTree

import pytest

import bfpp
from bfpp.command_line import main
from bfpp.schedules import Layout
from bfpp.terminal.formats import PDF, PNG
from bfpp.traces.figures.svg.bar_chart import Bars, svg_bars
from bfpp.traces.figures.svg.line_chart import Chart, Series, svg_charts
from bfpp.traces.figures.svg.placement import svg_placements

STEP = ["simulate", "gpipe", "--pp", "2", "--microbatches", "2"]


@pytest.fixture
def figure(tmp_path: Path) -> Path:
    pytest.importorskip("cairosvg", reason="needs bfpp[print] and libcairo", exc_type=OSError)
    return tmp_path / "figure"


def test_a_pdf_is_as_wide_as_asked_for_and_has_letters(figure: Path) -> None:
    place = figure.with_suffix(".pdf")
    assert main([*STEP, "--svg", str(place), "--width", "84mm"]) == 0
    assert PDF.is_ours(place)
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", place.read_bytes(), re.S)
    parts = [place.read_bytes(), *(zlib.decompress(each) for each in streams if each[:1] == b"x")]
    [box] = {found for part in parts for found in re.findall(rb"/MediaBox \[([^]]*)\]", part)}
    assert float(box.split()[2]) == pytest.approx(84 / 25.4 * 72, abs=0.1)
    assert any(b"/Font" in part for part in parts)  # text that can be searched, not outlines


def test_from_python_the_name_says_the_format_too(figure: Path) -> None:
    panels = [bfpp.Panel("GPipe", bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline)]
    for format_ in (PDF, PNG):
        place = figure.with_suffix(format_.suffixes[0])
        bfpp.write_svg(panels, place, points=240)
        assert format_.is_ours(place)
    with pytest.raises(bfpp.InvalidInput, match=r"^path: must end in \.svg or \.pdf or \.png, not"):
        bfpp.write_svg(panels, figure.with_suffix(".jpg"))


def test_a_png_has_300_pixels_an_inch(figure: Path) -> None:
    place = figure.with_suffix(".png")
    assert main([*STEP, "--svg", str(place), "--width", "84mm"]) == 0
    assert PNG.is_ours(place)
    data, at, chunks = place.read_bytes(), 8, {}
    while at < len(data):
        [size] = unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        chunks[kind], at = content, at + 12 + size
    assert unpack(">II", chunks[b"IHDR"][:8])[0] == pytest.approx(84 / 25.4 * 300, abs=1)
    assert unpack(">IIB", chunks[b"pHYs"]) == (11811, 11811, 1)


def test_the_papers_figures_are_converted(figure: Path) -> None:
    folder = figure.parent / "paper"
    words = [
        "paper",
        "figure-3",
        "--also",
        "pdf",
        "--also",
        "png",
        "--width",
        "84mm",
        "--out",
        str(folder),
    ]
    assert main(words) == 0
    assert {each.name for each in folder.iterdir()} == {
        "figure-3.svg", "figure-3.pdf", "figure-3.png", "index.html",
    }  # fmt: skip


def test_who_lacks_the_converter_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    for words in ([*STEP, "--svg", str(tmp_path / "a.pdf")], ["paper", "--also", "png"]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert not out
        assert "needs bfpp[print]" in err
    assert not list(tmp_path.iterdir())


def test_a_width_needs_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEP, "--width", "84mm"]) == 2
    assert "--width: needs --svg" in capsys.readouterr().err


def test_bars_are_as_long_as_their_numbers() -> None:
    drawn = svg_bars([Bars("days", {"one": 10.0, "other": 40.0}), Bars("GB", {"other": 2.0})], "t")
    ends = re.findall(r'd="M([\d.]+) [\d.]+H([\d.]+)V', drawn)
    one, other, memory = (float(end) - float(begin) for begin, end in ends)
    assert other == pytest.approx(4 * one, abs=0.05)
    assert memory > other  # less room is lost to its number
    assert re.findall(">([^<]+)</text>", drawn) == [
        "one",
        "other",
        "days",
        "10.0",
        "40.0",
        "GB",
        "2.0",
    ]


@pytest.mark.parametrize("kind", ["charts", "placements"])
def test_a_title_is_broken_where_its_figure_is_narrow(kind: str) -> None:
    title = "Figure 5, Llama 3 70B on many H100: the least training time (days) by cost"
    chart = Chart(title, "x", "y", [Series("one", (1, 2), (3, 4))])
    short = replace(chart, title="Figure 5")
    placement = Layout(2, 1, units_per_stage=4)
    long_one, short_one = {
        "charts": (svg_charts([chart], points=238), svg_charts([short], points=238)),
        "placements": (svg_placements([(title, placement)]), svg_placements([("5", placement)])),
    }[kind]
    assert title in " ".join(re.findall(">([^<]+)</text>", long_one))
    heights = [
        float(re.search(r' height="([\d.]+)', drawn)[1])  # type: ignore[index]
        for drawn in (long_one, short_one)
    ]
    assert heights[0] > heights[1]


@pytest.mark.parametrize("kind", ["charts", "bars", "placements"])
def test_a_narrow_figure_has_rows_instead_of_small_letters(kind: str) -> None:
    curve = Chart("(a) one", "x", "y", [Series("a schedule of a long name", (1, 2), (3, 4))])
    quantity = Bars("(a) training time (days)", {"a schedule": 10.0, "another one": 40.0})
    placements = [("(a) Standard", Layout(4, 1, units_per_stage=4)), ("(b) Looping", Layout(4, 1))]
    drawn = {
        "charts": lambda points: svg_charts([curve, curve], points=points),
        "bars": lambda points: svg_bars([quantity, quantity], "t", points),
        "placements": lambda points: svg_placements(placements, points),
    }[kind]
    sizes = {}
    for points in (238.0, 720.0):
        root = ElementTree.fromstring(drawn(points))
        assert root.attrib["width"] == f"{points:g}pt"
        assert all(float(each.get("font-size", 9)) >= 5 for each in root.iter())
        sizes[points] = float(root.attrib["height"].removesuffix("pt"))
    assert sizes[238.0] > 1.5 * sizes[720.0]


@pytest.mark.parametrize(
    ("points", "bands"),
    [
        (None, [("40", "200"), ("250", "410")]),  # eight columns of 20, 34 for names, 16 between
        (720.0, [("40", "200"), ("250", "410")]),
        (300.0, [("40", "142"), ("192", "294")]),  # to the edge, 6 from the end
        (238.0, [("40", "200"), ("40", "200")]),  # below one another
        (150.0, [("40", "144"), ("40", "144")]),
    ],
)
def test_columns_of_placements_are_as_wide_as_there_is_room_and_no_wider(
    points: float | None, bands: list[tuple[str, str]]
) -> None:
    placements = [("one", Layout(2, 1, units_per_stage=4)), ("two", Layout(2, 1, 4))]
    drawn = svg_placements(placements, points)
    first_of_each = re.findall(r'fill="#eef0f3" d="M([\d.]+) [\d.]+H([\d.]+)V', drawn)
    assert first_of_each == bands
