"""Operations and their tables: by name and by code, complete for those built in."""

from __future__ import annotations

import pickle

import pytest

from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.schedules import Communication
from bfpp.schedules.operations import data
from bfpp.schedules.operations.operations import (
    BUILT_IN,
    OPERATIONS,
    Table,
    collectives,
    compute_steps,
    declare,
    enders,
    of_scope,
    operation_named,
    readers,
    transfers,
    writers,
)
from bfpp.schedules.operations.row import Row, Scope
from bfpp.sim.costs.prices import PRICES
from bfpp.traces.explain.looks import LOOKS

TABLES = (LOOKS, PRICES, KERNELS)


def test_operations_have_a_name_and_a_code() -> None:
    for code, operation in enumerate(OPERATIONS):
        assert operation == code
        assert operation_named(operation.name) is operation
        assert pickle.loads(pickle.dumps(operation)) is operation
    with pytest.raises(ValueError, match="there is an operation FORWARD already"):
        declare("FORWARD", Row("forward", Scope.CELL))


def names(operations) -> str:
    return " ".join(each.name.lower() for each in operations)


# fmt: off
DATA = {  # what happens to it in a step: who writes it, who reads it, who consumes it
    data.OUTPUT: ("forward", "forward", ""),
    data.SAVED: ("forward", "backward backward_input offload", "backward backward_weight"),
    data.OFFLOADED: ("offload", "reload", "reload"),
    data.RELOADED: ("reload", "backward backward_input", ""),
    data.INPUT_GRADIENT: ("backward backward_input", "backward backward_input", ""),
    data.HALVED: ("backward_input", "backward_weight", "backward_weight"),
    data.WEIGHTS: ("gather", "forward backward backward_input backward_weight", "optimizer"),
    data.GRADIENTS: ("backward backward_weight", "", "reduce"),
    data.REDUCED: ("reduce", "optimizer norm all_reduce tied_all_reduce orthogonalise", ""),
    data.REPLICATED: ("all_reduce", "optimizer norm tied_all_reduce orthogonalise", ""),
    data.TIED_GRADIENTS: ("tied_all_reduce", "optimizer norm orthogonalise", ""),
    data.ORTHOGONAL: ("orthogonalise", "optimizer", ""),
    data.NORM_OF_RANK: ("norm", "optimizer orthogonalise", ""),
}
COLLECTIVES = {  # of unsharded state, norms and matrices need no other replica
    Communication("none", clipping=True): "gather reduce all_reduce",
    Communication("partial", clipping=True): "gather reduce norm all_reduce orthogonalise",
    Communication("full", hybrid=True): "gather reduce norm all_reduce orthogonalise",
}
# fmt: on


@pytest.mark.parametrize("datum", DATA, ids=lambda datum: datum.name)
def test_who_writes_reads_and_consumes(datum: data.Datum) -> None:
    told = writers(datum), readers(datum), enders(datum)
    assert tuple(map(names, told)) == DATA[datum]


def test_operations_by_what_they_are() -> None:
    assert names(transfers()) == "transfer_activations transfer_gradients"
    assert names(compute_steps()) == "forward backward backward_input backward_weight"
    scopes = {str(scope): names(of_scope(scope, BUILT_IN)) for scope in Scope}
    assert scopes["unit"] == "gather reduce all_reduce"
    assert scopes["ends"] == "tied_all_reduce"
    assert scopes["rank"] == "optimizer norm orthogonalise"
    others = {name for scope in ("unit", "ends", "rank") for name in scopes[scope].split()}
    assert {*scopes["cell"].split()} == {*names(BUILT_IN).split()} - others


@pytest.mark.parametrize("communication", COLLECTIVES, ids=lambda each: str(each.sharding))
def test_what_replicas_do_together(communication: Communication) -> None:
    assert names(collectives(communication)) == COLLECTIVES[communication]


@pytest.mark.parametrize("table", TABLES, ids=["traced", "prices", "kernels"])
def test_a_table_without_an_operation_fails_at_once(table) -> None:
    for operation in BUILT_IN:
        rows = {each: row for each, row in table.items() if each is not operation}
        with pytest.raises(LookupError, match=f"{operation.name} has no {table.knows}"):
            Table(table.knows, rows)


def test_an_operation_without_a_row_is_named_where_it_is_looked_up() -> None:
    lonely = declare("LONELY", Row("lonely", Scope.CELL))
    try:
        for table in TABLES:
            with pytest.raises(LookupError, match="LONELY has no"):
                table[lonely]
    finally:
        OPERATIONS.pop()
