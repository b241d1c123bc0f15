"""Files and words damaged in many ways, drawn by Hypothesis."""

from __future__ import annotations

import gzip
import json
import re
from copy import deepcopy

from hypothesis import strategies as st

ODD_NUMBERS = [
    "0", "-1", "-0.0", "1.5", "1e3", "1e30", "1e31", "1e308", "1e999", "-1e999", "1e-320", "nan",
    "inf", "-inf", "NaN", "Infinity", "9" * 30, "9" * 5000, "1_000", "٣", "0x10", "true", "null",
    "2147483647", "2147483648", "9223372036854775808", '"2"', '""', "[]", "{}", "[1]", "",
]  # fmt: skip

ODD_VALUES = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "gpipe", "\ud800", "\x00", "a\nb", [], {}, [0], [[]], [None], {"x": 1},
]  # fmt: skip

ODD_WORDS = [
    "", " ", "-", "--", "-1", "=", "/proc", ".", "..", "*", "~", "\n", "\x1b[31m", "٣", "½", "é",
    "\udcff", "nan", "none", "None", "x" * 300, "a/b", "no/where", "/dev/null", "/proc/self/mem",
    "out.svg", "out.html", "out.json", "out.json.gz", "out.toml", "out.csv", "out.parquet",
    "folder", "folder/x.svg", "foreign.svg", "model.toml", "config.json", "x.py:f", "gpipe", "0",
    "1", "2", "bert-52b", "dgx-h100", "--pp", "--json", "--force", "[red]", "{}", "%s", "<script>",
    "a=b", "forward=2", "forward=x0", "stage.0=x2", "stage.9999=x2", "hidden=0", "heads=x0",
    "layers=3", "device.peak=0", "sequence=1e9", "microbatch_size=x1e30", "tp=3",
    "--loops 2", "breadth-first --loops 4", "'", '"', *ODD_NUMBERS,
]  # fmt: skip

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")


@st.composite
def damaged(draw, contents: bytes) -> bytes:
    """The bytes of a text file with one to three damages."""
    if contents.startswith(b"\x1f\x8b") and draw(st.booleans()):
        return gzip.compress(draw(damaged(gzip.decompress(contents))))
    for _ in range(draw(st.integers(1, 3))):
        contents = draw(st.sampled_from(DAMAGES))(draw, contents)
    return contents


def _place(draw, contents):
    return draw(st.integers(0, len(contents)))


def _cut_off(draw, contents):
    return contents[: _place(draw, contents)]


def _piece_lost(draw, contents):
    at = _place(draw, contents)
    return contents[:at] + contents[at + draw(st.integers(1, 40)) :]


def _bytes_in_between(draw, contents):
    at = _place(draw, contents)
    return contents[:at] + draw(st.binary(min_size=1, max_size=8)) + contents[at:]


def _text_in_between(draw, contents):
    at = _place(draw, contents)
    return contents[:at] + draw(st.text(max_size=8)).encode(errors="replace") + contents[at:]


def _bit_flipped(draw, contents):
    if not contents:
        return contents
    at = draw(st.integers(0, len(contents) - 1))
    flipped = contents[at] ^ 1 << draw(st.integers(0, 7))
    return contents[:at] + bytes([flipped]) + contents[at + 1 :]


def _piece_repeated(draw, contents):
    """Until it is long, or many."""
    at = _place(draw, contents)
    piece = contents[at : at + draw(st.integers(1, 80))]
    times = draw(st.sampled_from([2, 100, 100_000 // max(len(piece), 1)]))
    return contents[:at] + piece * times + contents[at:]


def _number_changed(draw, contents):
    found = list(_NUMBER.finditer(contents))
    if not found:
        return contents
    one = draw(st.sampled_from(found))
    odd = draw(st.sampled_from(ODD_NUMBERS)).encode()
    return contents[: one.start()] + odd + contents[one.end() :]


def _lines_changed(draw, contents):
    lines = contents.split(b"\n")
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    changed = {
        "swap": [*lines[:one], lines[other], *lines[one + 1 :]],
        "lose": lines[:one] + lines[one + 1 :],
        "double": [*lines[:one], lines[one], *lines[one:]],
    }
    return b"\n".join(draw(st.sampled_from(list(changed.values()))))


def _rewritten(draw, contents):
    ways = [
        b"", b"\x00" * 64, contents * 2, contents.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + contents,
        contents.decode(errors="replace").encode("utf-16"), contents.upper(), b"[" * 50_000,
        b'{"a":' * 50_000, contents.replace(b",", b";"), contents.replace(b'"', b"'"),
    ]  # fmt: skip
    return draw(st.sampled_from(ways))


def _cell_changed(draw, contents):
    """A cell of a table, or whatever is between commas: another one of these, or an odd word."""
    cells = contents.split(b",")
    at = draw(st.integers(0, len(cells) - 1))
    odd = st.sampled_from(ODD_WORDS).map(lambda word: word.encode(errors="surrogateescape"))
    cells[at] = draw(odd | st.sampled_from(cells))
    return b",".join(cells)


DAMAGES = [
    _cut_off, _piece_lost, _bytes_in_between, _text_in_between, _number_changed, _number_changed,
    _number_changed, _lines_changed, _lines_changed, _rewritten, _bit_flipped, _piece_repeated,
    _cell_changed, _cell_changed,
]  # fmt: skip


@st.composite
def changed_json(draw, contents: bytes) -> bytes:
    """JSON (compressed or not) that is still JSON, with some values of other kinds, or none."""
    if contents.startswith(b"\x1f\x8b"):
        return gzip.compress(draw(changed_json(gzip.decompress(contents))))
    record = json.loads(contents)
    for _ in range(draw(st.integers(1, 3))):
        change(draw, record)
    return json.dumps(record).encode()


def change(draw, record):
    """One value somewhere inside: another one, one that stood elsewhere, or none."""
    holders = list(_holders(record))
    if not holders:
        return
    holder = draw(st.sampled_from(holders))
    key = draw(st.sampled_from(list(_keys(holder))))
    act = draw(st.sampled_from(["odd", "odd", "near", "lose", "double"]))
    value = holder[key]
    if act == "lose":
        del holder[key]
    elif act == "double" and isinstance(holder, list):
        holder.insert(key, value)
    elif act == "near" and isinstance(value, int) and not isinstance(value, bool):
        holder[key] = value + draw(st.sampled_from([-1, 1, 100]))
    else:
        holder[key] = deepcopy(draw(st.sampled_from(ODD_VALUES)))


def _keys(holder):
    return holder if isinstance(holder, dict) else range(len(holder))


def _holders(record):
    if isinstance(record, dict | list) and record:
        yield record
        for key in list(_keys(record))[:20]:
            yield from _holders(record[key])
