"""What says that a step is uneven: numbers, places and tables, and one line for what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.unevenness.counted_numbers import counted
from bfpp.sim.unevenness.factors_file import read_factors
from bfpp.sim.unevenness.places import parse_placed
from bfpp.sim.unevenness.routing_file import routing_loads
from bfpp.sim.unevenness.sources import Pauses, SlowDevices


def read(text):
    found = counted("lengths", str(text))
    return dict(zip(found.numbers.tolist(), found.counts.tolist(), strict=True))


def test_lists_and_histograms_in_the_text():
    assert read("512,4096,512") == {512: 2, 4096: 1}
    assert read("512:10, 4096:1, 8:0") == {512: 10, 4096: 1}
    assert counted("lengths", "1:3,5").mean == 2.0
    assert counted("lengths", "1:3,5").largest == 5


@pytest.mark.parametrize("text", ["64-4096:6000", "64 - 4096 : 6000, 9:0"])
def test_bins_are_spread_evenly_over_the_logarithm(text):
    found = counted("lengths", text)
    assert found.counts.sum() == 6000
    assert (found.numbers[0] >= 64) & (found.largest <= 4096)
    for edge in (128, 256, 512, 1024, 2048):  # sixths of the bin, each within a part of 32
        below = found.counts[found.numbers < edge].sum()
        assert below / 6000 == pytest.approx(np.log2(edge / 64) / 6, abs=1 / 32)
    assert found.mean == pytest.approx((4096 - 64) / np.log(64), rel=0.01)


def test_bins_that_hold_few_or_narrow_numbers():
    assert read("7-7:3,8-9:4") == {7: 3, 8: 2, 9: 2}
    assert sum(read("1-1000000:3").values()) == 3


@pytest.mark.parametrize(
    ("name", "text", "numbers"),
    [
        ("bins.csv", "length,count\n7-7,2\n1-1,3\n", {1: 3, 7: 2}),
        ("bare.csv", "7-7,2\n9,3\n", {7: 2, 9: 3}),
        ("plain.txt", "512\n4096\n\n512\n", {512: 2, 4096: 1}),
        ("one.csv", "512\n4096\n", {512: 1, 4096: 1}),
        ("two.csv", "512,3\n4096,1\n", {512: 3, 4096: 1}),
        ("named.csv", "id,length,count\n7,512,3\n8,4096,1\n", {512: 3, 4096: 1}),
        ("other.csv", "tokens\n12\n", {12: 1}),
        ("marked.csv", "\ufefflength\n12\n", {12: 1}),
    ],
)
def test_lines_and_columns_of_files(tmp_path, name, text, numbers):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(tmp_path / name) == numbers


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        ("length", {5: 1, 7: 2}),
        ("tokens", {1: 1, 2: 1, 3: 1}),
        ("text", {0: 1, 1: 1, 4: 1}),
        ("", {5: 1, 7: 2}),
    ],
)
def test_columns_of_parquet_files(tmp_path, column, numbers):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"length": [5, 7, 7], "tokens": [[1], [1, 2], [1, 2, 3]], "text": ["a", "long", ""]}
    parquet.write_table(arrow.table(columns), tmp_path / "documents.parquet")
    path = tmp_path / "documents.parquet"
    assert read(f"{path}:{column}" if column else path) == numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", "is not a list of numbers"),
        ("512:x", "is not a list of numbers"),
        ("9-8:1", "is not a list of numbers"),
        ("0-8:1", "is not a list of numbers"),
        ("-5", "is not a list of numbers"),
        ("0:0", "holds no numbers"),
        ("absent.csv", "absent.csv: No such file"),
        ("9999999999", "out of range"),
    ],
)
def test_what_are_no_numbers_is_refused(text, words):
    with pytest.raises(InvalidConfiguration, match=words):
        counted("lengths", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no numbers"),
        ("length,count\n", "holds no numbers"),
        ("count\n3\n", "has no column but count"),
        ("length\n" + "9" * 200_000, "field larger than"),
        ("length,count\n1,x\n", "row 1 does not hold"),
        ("a,b\n1\n2", ""),
    ],
)
def test_files_without_numbers_are_refused(tmp_path, text, words):
    (tmp_path / "wrong.csv").write_text(text)
    if not words:
        assert read(tmp_path / "wrong.csv") == {1: 1, 2: 1}
        return
    with pytest.raises(InvalidConfiguration, match=words):
        counted("lengths", str(tmp_path / "wrong.csv"))


def test_parquet_files_that_are_none_or_have_no_such_column_are_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "wrong.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidConfiguration, match="holds no such numbers"):
        counted("lengths", str(tmp_path / "wrong.parquet"))
    parquet.write_table(arrow.table({"length": [1], "flag": [1.5]}), tmp_path / "small.parquet")
    with pytest.raises(InvalidConfiguration, match="has no column size; it has length, flag"):
        counted("lengths", f"{tmp_path}/small.parquet:size")
    with pytest.raises(InvalidConfiguration, match="holds no such numbers"):
        counted("lengths", f"{tmp_path}/small.parquet:flag")


def test_places_are_read_as_they_are_written():
    text = "rank=3,replica=1:1.2 link=2-3:2"
    placed = parse_placed("slow", text, ["rank", "replica", "link"])
    assert " ".join(map(str, placed)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank=3", "is not PLACE:NUMBER, such as rank=3:1.2"),
        ("rank=3:fast", "is not PLACE:NUMBER"),
        ("rnak=3:2", "there is no place 'rnak'; .* did you mean 'rank'"),
        ("rank=a:2", "'rank=a' is not a number, such as rank=3"),
        ("link=2:2", "'link=2' is not two ranks, such as link=2-3"),
    ],
)
def test_what_is_no_place_is_refused(text, words):
    with pytest.raises(InvalidConfiguration, match=words):
        parse_placed("slow", text, ["rank", "replica", "link"])


def test_pauses_are_seconds_once_in_some_steps():
    [collection, loading] = Pauses.parse("gc:0.3/50 data:0.1/20@rank=0").pauses
    assert (collection.name, collection.seconds, collection.steps) == ("gc", 0.3, 50.0)
    assert (loading.steps, dict(loading.at.at)) == (20.0, {"rank": (0,)})
    for wrong in ("gc", "gc:0.3", ":0.3/5", "gc:0.3/0.5"):
        with pytest.raises(InvalidConfiguration, match="is not NAME:SECONDS/STEPS"):
            Pauses.parse(wrong)
    with pytest.raises(InvalidConfiguration, match="there is no place 'stage'"):
        SlowDevices.parse("rank=0:2") and Pauses.parse("gc:1/2@stage=3")


def test_loads_of_experts(tmp_path):
    assert routing_loads("3, 1").tolist() == [[[3, 1]]]
    path = tmp_path / "loads.csv"
    path.write_text("layer,expert,count,observation\n0,0,5,1\n0,1,7,1\n3,1,2,4\n")
    assert routing_loads(str(path)).tolist() == [[[5, 7], [0, 0]], [[0, 0], [0, 2]]]
    for text, words in {
        "layer,expert\n0,0\n": "has no column count",
        "layer,expert,count\n": "holds no loads",
        "layer,expert,count\n0,0\n": "row 1 does not hold",
        "layer,expert,count\n0,0,-1\n": "row 1 does not hold",
        "layer,expert,count\n0,0,9999999999999999999999\n": "row 1 does not hold",
        "layer,expert,count\n0,0,0\n": "holds no loads",
    }.items():
        path.write_text(text)
        with pytest.raises(InvalidConfiguration, match=words):
            routing_loads(str(path))
    for text, words in {"a,b": "neither a list", "0,0": "neither", "no.csv": "No such"}.items():
        with pytest.raises(InvalidConfiguration, match=words):
            routing_loads(text)


def test_tables_of_factors_are_refused_with_a_reason(tmp_path):
    path = tmp_path / "factors.csv"
    for text, words in {
        "rank\n1\n": "needs a column factor or a column seconds",
        "rnk,factor\n1,2\n": "column 'rnk' is not one of .* did you mean 'rank'",
        "rank,factor\n": "holds no rows",
        "rank,factor\nx,2\n": "row 1: rank is 'x', not a number",
        "rank,factor\n1,-2\n": "row 1: needs a number of at least 0",
        "operation,factor\nforwards,2\n": "no operation 'forwards'.* did you mean 'forward'",
    }.items():
        path.write_text(text)
        with pytest.raises(InvalidConfiguration, match=words):
            read_factors(str(path))
    with pytest.raises(InvalidConfiguration, match="No such file"):
        read_factors("absent.csv")


def test_numbers_are_drawn_as_often_as_they_occur():
    random = np.random.default_rng(0)
    lengths = counted("lengths", "1:3,5:1")
    assert sorted(lengths.drawn(10, random).tolist()) == [1, 1, 1, 5]
    often = counted("lengths", "1:3000,5:1000").drawn(2000, random)
    assert np.mean(often == 5) == pytest.approx(0.25, abs=0.03)
