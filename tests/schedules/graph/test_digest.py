"""The digest of a graph: one for equal graphs, another for any change, everywhere the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.columns import Groups
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.graph.templates import Piece
from tests.helpers.mutations import MUTATIONS, rebuilt
from tests.helpers.strategies import configurations, graphs, order_graphs

SOME = settings(derandomize=True, deadline=None, max_examples=60)


@SOME
@given(configurations())
def test_equal_graphs_have_equal_digests(configuration):
    graph = configuration.graph()
    assert len(bytes.fromhex(graph.digest)) == 32
    assert configuration.graph().digest == graph.digest
    assert read_graph(write_graph(graph)).digest == graph.digest
    assert replace(graph, schedule="another name").digest == graph.digest


@SOME
@given(st.one_of(graphs(), order_graphs()), st.sampled_from(["<i8", ">i4", ">i8"]))
def test_the_type_of_a_column_does_not_matter(graph, dtype):
    columns = {name: getattr(graph, name).astype(dtype) for name in COLUMNS}
    dependencies = Groups(*(part.astype(dtype) for part in graph.dependencies))
    assert replace(graph, dependencies=dependencies, **columns).digest == graph.digest


@SOME
@given(graphs(), st.sampled_from(COLUMNS), st.data())
def test_any_number_of_any_column_counts(graph, name, data):
    column = getattr(graph, name).copy()
    at = data.draw(st.integers(0, len(graph) - 1))
    column[at] += -1 if name == "operation" and column[at] else 1  # operations must exist
    assert replace(graph, **{name: column}).digest != graph.digest


@SOME
@given(graphs(), st.sampled_from(list(MUTATIONS)), st.data())
def test_any_mutation_counts(graph, name, data):
    mutated = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items)))
    assume(mutated is not None)
    same = mutated is not None and write_graph(mutated) == write_graph(graph)
    assert (mutated.digest == graph.digest) == same


def example():
    return build_graph("breadth-first", Layout(2, 4, 2), Communication(Sharding.FULL))


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": Layout(2, 4, placement=(0, 1, 1, 0))},
        {"layout": Layout(2, 5, 2)},
        {"communication": Communication(Sharding.PARTIAL)},
        {"communication": Communication(Sharding.FULL, dp_overlap=False)},
        {"lanes": example().lanes[::-1]},
    ],
)
def test_all_beside_the_columns_counts(changes):
    assert replace(example(), **changes).digest != example().digest


def test_templates_count():
    graph = example()
    whole = graph.digest
    pieces = (Piece(Operation.FORWARD, 1.0),)
    cut = graph.with_templates({(Operation.FORWARD, 0): pieces})
    assert cut.digest == replace(graph, templates=cut.templates).digest != whole


def test_a_number_does_not_move_between_columns_unseen():
    """The same bytes one after the other, divided elsewhere."""
    graph = example()
    start, member = graph.dependencies
    moved = Groups(np.append(start, member[:1]), member[1:])
    assert replace(graph, dependencies=moved).digest != graph.digest
    assert rebuilt(graph, list(graph.tasks())).digest == graph.digest
