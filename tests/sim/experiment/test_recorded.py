"""Nothing that was predicted has changed: graphs to the last number, times to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.recorded import PARTS, Case, graph_hash, recorded

CLOSE = 1e-12


def numbers(part) -> list[float]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        return [number for each in part for number in numbers(each)]
    return [] if isinstance(part, str) else [part]


def words(part) -> list[str]:
    if isinstance(part, dict):
        return [word for name, each in part.items() for word in (name, *words(each))]
    if isinstance(part, list):
        return [word for each in part for word in words(each)]
    return [part] if isinstance(part, str) else []


@pytest.mark.parametrize("name", PARTS)
def test_what_was_recorded_is_what_is(name):
    now, before = PARTS[name](), recorded()[name]
    assert words(now) == words(before)
    np.testing.assert_allclose(numbers(now), numbers(before), rtol=CLOSE)


def test_a_graph_s_hash_depends_on_every_part_of_it():
    graph = Case("breadth-first", 2, 3, 2, None, "full", True, True, True).graph()
    hashes = {graph_hash(graph)}
    for name in (
        "operation", "rank", "peer", "unit", "microbatch", "lane", "peer_lane",
        "weight_buffer", "gradient_buffer",
    ):  # fmt: skip
        column = getattr(graph, name).copy()
        column[5] = (column[5] + 1) % 3
        hashes.add(graph_hash(replace(graph, **{name: column})))
    member = graph.dependencies.member.copy()
    member[3] += 1
    hashes.add(graph_hash(replace(graph, dependencies=graph.dependencies._replace(member=member))))
    hashes.add(graph_hash(replace(graph, lanes=graph.lanes[::-1])))
    assert len(hashes) == 12
