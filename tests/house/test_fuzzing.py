"""Every reader of foreign bytes reads or refuses whatever it is given, within time and memory."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from bfpp.schedules import InvalidInput
from bfpp.traces.formats.protobuf import delimited, field
from tests.executor.model.test_hugging_face_weights import LLAMA
from tests.helpers import foreign_bytes, foreign_checkpoints, foreign_unevenness, fuzzing
from tests.helpers.damage import damaged
from tests.helpers.fuzzing import BYTES, SECONDS, Reader, Tally, fuzzed, give
from tests.helpers.nsight_files import write_nsight
from tests.helpers.simumax_files import system

READERS = foreign_bytes.READERS | foreign_checkpoints.READERS | foreign_unevenness.READERS
FEW, MANY = 50, 10_000


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("inputs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_whatever_is_given_is_read_or_refused_in_a_line_within_limits(name, inputs):
    tally = fuzzed(READERS[name], inputs)
    assert tally.faults == {}
    assert tally.inputs == tally.accepted + tally.refused >= inputs // 2
    assert tally.refused > 0


def _algorithms():
    (first, *_) = READERS["cluster files"].whole()
    return b'algorithms = [["ring"]]\n' + first


def _communication():
    record = json.loads(READERS["task graphs"].whole()[0])
    return json.dumps(record | {"communication": ["full"]}).encode()


def _rates(rates):
    record = system()
    record["accelerator"]["op"]["matmul"]["accurate_efficient_factor"] = rates
    return json.dumps(record).encode()


def _node():
    """A node whose number is an empty list."""
    return READERS["Chakra"].whole()[0] + delimited(field(1, b""))


def _nothing():
    """A file of Nsight Systems in which no process did anything."""
    return write_nsight(Path("nothing.sqlite"), []).read_bytes()


FOUND = {
    "a list for an algorithm": ("cluster files", _algorithms, "refused"),
    "a list for what is communicated": ("task graphs", _communication, "refused"),
    "a list for what a trace says": (
        "traces of --perfetto",
        lambda: b'{"otherData": [], "traceEvents": []}',
        "refused",
    ),
    "no process": ("Nsight Systems", _nothing, "refused"),
    "a list of rates": ("SimuMax systems", lambda: _rates(["b=1"]), "refused"),
    "a shape without an end": ("SimuMax systems", lambda: _rates({"b" * 10**5: 1}), "refused"),
    "a node without a number": ("Chakra", _node, "accepted"),
    "an array without a header": ("tokens in .npy", lambda: b"", "refused"),
    "orders that are no text": (
        "requests to the explorer",
        lambda: json.dumps({"orders": "\ud800"}).encode(),
        "refused",
    ),
    "scales of frequencies in a list": (
        "config.json, trained",
        lambda: json.dumps({**LLAMA, "rope_scaling": [8.0]}).encode(),
        "refused",
    ),
    "scales that are missing": (
        "config.json, trained",
        lambda: json.dumps({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}).encode(),
        "refused",
    ),
    "a number without an end": (
        "numbers in options",
        lambda: b"share " + b"9" * 10**5 + b"x",
        "refused",
    ),
    "a word of zeros": (
        "orders, checked",
        lambda: b"0F0,0B0," + b"0" * 10**5 + b"UNSHARD",
        "refused",
    ),
}
"""The smallest inputs of a kind that readers failed on, or took minutes for."""


@pytest.mark.parametrize(("name", "contents", "how"), FOUND.values(), ids=FOUND)
def test_what_was_found_once_is_mended(tmp_path, monkeypatch, name, contents, how):
    monkeypatch.chdir(tmp_path)
    tally = Tally()
    give(READERS[name], contents(), tally)
    assert (tally.faults, getattr(tally, how)) == ({}, 1)


def large(_):
    held = bytearray(2 * BYTES)
    held[:: 2**12] = b"x" * len(held[:: 2**12])


def gigantic(_):
    bytearray(8 * fuzzing.ROOM)


def slow(_):
    begun = time.process_time()
    while time.process_time() < begun + 9 * SECONDS:
        pass


def backtracking(_):
    re.fullmatch(r"(a|a)*b", "a" * 40)


def long(_):
    raise InvalidInput("x" * 100_000)


def broken(_):
    return {}["key"]


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (large, "more than 64 MiB"),
        (gigantic, "MemoryError in "),
        (slow, "more than 0.5 s, in "),
        (backtracking, "more than 0.5 s, in "),
        (broken, "KeyError in "),
    ],
)
def test_what_is_beyond_the_limits_is_found(monkeypatch, read, fault):
    monkeypatch.setattr(fuzzing, "SECONDS", 0.5)
    faulty = Reader(lambda: [b"whole"], lambda given: given == b"whole" or read(given), damaged)
    tally = fuzzed(faulty, 2)
    assert {each[: len(fault)] for each in tally.faults} == {fault}


def test_a_line_is_one_that_can_be_read():
    faulty = Reader(lambda: [b"whole"], lambda given: given == b"whole" or long(given), damaged)
    assert fuzzed(faulty, 2).faults == {}
