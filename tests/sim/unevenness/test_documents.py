"""Packing: fast ways against plain ones, and what every packing keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.sim.unevenness.counted_numbers import counted
from bfpp.sim.unevenness.documents import PACKINGS, packed

DOCUMENTS = st.lists(st.integers(1, 20), min_size=1, max_size=60).map(np.array)
LENGTH = 20


def plain_first_fit(documents):
    bins = []
    for each in documents:
        room = [number for number, own in enumerate(bins) if sum(own) + each <= LENGTH]
        if room:
            bins[room[0]].append(each)
        else:
            bins.append([each])
    return bins


def plain_best_fit(documents):
    bins = []
    for each in sorted(documents, reverse=True):
        room = [own for own in bins if sum(own) + each <= LENGTH]
        if room:
            max(room, key=sum).append(each)
        else:
            bins.append([each])
    return bins


def plain_concatenation(documents):
    owner = [number for number, tokens in enumerate(documents) for _ in range(tokens)]
    whole = max(len(owner) // LENGTH, 1)
    sequences = [owner[at * LENGTH : (at + 1) * LENGTH] for at in range(whole)]
    return [[own.count(each) for each in set(own)] for own in sequences]


PLAIN = {
    "first-fit": plain_first_fit,
    "best-fit": plain_best_fit,
    "concatenate": plain_concatenation,
    "none": lambda documents: [[each] for each in documents],
}


@pytest.mark.parametrize("name", PACKINGS)
@given(documents=DOCUMENTS)
def test_sequences_are_those_of_a_plain_packing(name, documents):
    plain = PLAIN[name](documents.tolist())
    sequences = PACKINGS[name](documents, LENGTH)
    squares = [float(sum(each**2 for each in own)) for own in plain]
    assert sorted(sequences.squares.tolist()) == sorted(squares)
    tokens = [float(sum(own)) if name == "none" else float(LENGTH) for own in plain]
    assert sorted(sequences.tokens.tolist()) == sorted(tokens)


@pytest.mark.parametrize("name", PACKINGS)
def test_longer_documents_than_a_sequence_are_cut_to_it(name):
    sequences = packed(counted("lengths", "100,100"), name, 40, np.random.default_rng(0))
    assert set(sequences.squares.tolist()) == {1600.0}


def test_full_documents_fill_sequences_in_any_packing():
    for name in PACKINGS:
        sequences = packed(counted("lengths", "64:10"), name, 64, np.random.default_rng(0))
        assert sequences.tokens.tolist() == [64.0] * 10
        assert sequences.squares.tolist() == [64.0**2] * 10
