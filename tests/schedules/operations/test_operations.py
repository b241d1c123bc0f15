"""Operations and their tables: by name and by code, complete for those built in."""

from __future__ import annotations

import pickle

import pytest

from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.schedules.operations.operations import (
    BUILT_IN,
    OPERATIONS,
    Table,
    declare,
    operation_named,
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
