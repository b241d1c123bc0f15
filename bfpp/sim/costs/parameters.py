"""Parameters of cost models: their names, and changes of one.

A parameter is either a number inside the model, by its dotted name
(`forward` of abstract costs, `inter_node.bandwidth` of a cluster), or the cost
of a kind of task on any model: an operation (`transfer`, `gather`, `backward`
with its halves, ...) or the compute of one stage (`stage.3`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import Flags, Seconds
from bfpp.schedules.errors import did_you_mean
from bfpp.sim.costs.prices import parameters
from bfpp.sim.engines.cost_model import CostModel, Costs
from bfpp.sim.presets.numbers import LARGEST, is_count, is_usable, real, whole

STAGE = "stage."

SHARE = "_efficiency"
"""The end of the names of shares of what is possible, which are 1 at most."""

LEFT_OUT = ("int | None", "float | None")
"""Types of fields that hold a number, or nothing where it follows from others."""


@dataclass(frozen=True)
class Scaled:
    """A cost model whose tasks of one kind take `factor` times as long, and move as much more."""

    model: CostModel
    kind: str
    factor: float

    def costs(self, graph: TaskGraph) -> Costs:
        """The model's costs, scaled."""
        costs = self.model.costs(graph)
        factor = np.where(tasks_of_kind(graph, self.kind), self.factor, 1.0)
        return replace(costs, seconds=costs.seconds * factor, bytes=costs.bytes * factor)


def tasks_of_kind(graph: TaskGraph, kind: str) -> Flags:
    """The tasks of an operation, or the compute steps of `stage.N`."""
    if not kind.startswith(STAGE):
        return np.isin(graph.operation, parameters()[kind])
    number = kind.removeprefix(STAGE)
    if not 0 <= _stage(number) < graph.layout.stages:
        raise InvalidConfiguration(
            "set", f"there is no {kind}; the last is {graph.layout.stages - 1}"
        )
    return graph.is_compute & np.equal(graph.stage, _stage(number))


def _stage(number: str) -> int:
    stage = whole(number)
    return -1 if stage is None else stage


DEGREES = "degrees"
"""The part of costs that has the degrees of parallelism."""


@dataclass(frozen=True)
class Change:
    """A parameter, and its new value or the factor to multiply it by."""

    name: str
    value: float
    is_factor: bool

    def __str__(self) -> str:
        return f"{self.name}={'x' if self.is_factor else ''}{self.value:g}"


def parse_change(text: str) -> Change:
    """A change written as NAME=VALUE or NAME=xFACTOR."""
    name, equals, value = text.partition("=")
    is_factor = value.startswith("x")
    number = real(value.removeprefix("x"))
    if not (name and equals and is_usable(number)):
        raise InvalidConfiguration(
            "set", f"{text!r} is not NAME=VALUE or NAME=xFACTOR, a number from 0 to {LARGEST:g}"
        )
    return Change(name, number, is_factor)


def changed(model: CostModel, change: Change) -> CostModel:
    """The model with one parameter changed; raises `InvalidConfiguration` if it has none such."""
    is_kind = change.name in parameters() or change.name.startswith(STAGE)
    if is_kind and change.is_factor:
        return Scaled(model, change.name, change.value)
    paths = [path for path, _ in numbers(model) if _is_called(path, change.name)]
    if len(paths) != 1:
        some = ", ".join(
            sorted({*parameters(), "stage.N", *(".".join(path) for path, _ in numbers(model))})
        )
        if is_kind:
            raise InvalidConfiguration(
                "set", f"{change.name!r} is not a single number here; scale it: x0.9"
            )
        problem = "is ambiguous" if paths else "is not a parameter"
        meant = "" if paths else did_you_mean(change.name, some.split(", "))
        raise InvalidConfiguration("set", f"{change.name!r} {problem}; there are {some}{meant}")
    if paths[0][0] == DEGREES:
        *_, degree = paths[0]
        raise InvalidConfiguration(
            "set",
            f"{change.name!r} decides which tasks there are, and --set what they cost: "
            f'--against "--{degree.replace("_", "-")} N" compares',
        )
    value = change.value
    if change.is_factor:
        value *= number_at(model, paths[0])
    result: CostModel = with_number(model, paths[0], value)
    return result


def what_if(model: CostModel, text: str) -> CostModel:
    """The model with the change that a text asks for, which must be possible."""
    change = parse_change(text)
    try:
        result = changed(model, change)
    except InvalidConfiguration as error:
        if error.field == "set":
            raise
        raise InvalidConfiguration("set", f"{text}: {error.reason}") from None
    if change.name.endswith(SHARE):
        (value,) = (each for path, each in numbers(result) if _is_called(path, change.name))
        if value is not None and value > 1:
            raise InvalidConfiguration("set", f"{change.name} must be at most 1, not {value:g}")
    return result


def numbers(model: object) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Every number inside a model, by the names of the fields that lead to it; None if left out."""
    if not is_dataclass(model):
        return
    for field in fields(model):
        value = getattr(model, field.name)
        given = isinstance(value, (int, float)) and not isinstance(value, bool)
        if given or str(field.type) in LEFT_OUT:
            yield (field.name,), value
        yield from (((field.name, name), number) for name, number in _named_numbers(value).items())
        named = _named_parts(value) or {field.name: value}
        for name, part in named.items():
            for path, inner in numbers(part):
                yield (name, *path), inner


def _named_parts(value: object) -> dict[str, Any]:
    """The parts of a tuple that have names, such as the levels of a network: they go by these."""
    if not isinstance(value, tuple):
        return {}
    return {part.name: part for part in value if is_dataclass(part) and hasattr(part, "name")}


def _named_numbers(value: object) -> dict[str, float]:
    """The numbers of a tuple of pairs with their names, such as peaks by precision."""
    pairs = value if isinstance(value, tuple) else ()
    named = {
        str(pair[0]): pair[1]
        for pair in pairs
        if isinstance(pair, tuple) and isinstance(pair[0], str) and isinstance(pair[-1], float)
    }
    return named if len(named) == len(pairs) else {}


def _is_called(path: tuple[str, ...], name: str) -> bool:
    words = tuple(name.split("."))
    return path[-len(words) :] == words


def number_at(model: object, path: tuple[str, ...]) -> float:
    """The number inside a model that these names lead to."""
    value = dict(numbers(model))[path]
    if value is None:
        name = ".".join(path)
        raise InvalidConfiguration("set", f"{name!r} is not set, so it cannot be scaled")
    return value


def with_number(model: Any, path: tuple[str, ...], value: float) -> Any:
    """The model with another number where these names lead to."""
    name, *rest = path
    if rest:
        for field in fields(model):
            parts = _named_parts(getattr(model, field.name))
            if name in parts:
                parts[name] = with_number(parts[name], tuple(rest), value)
                return replace(model, **{field.name: tuple(parts.values())})
        part = getattr(model, name)
        if pairs := _named_numbers(part):
            return replace(model, **{name: tuple({**pairs, rest[0]: value}.items())})
        return replace(model, **{name: with_number(part, tuple(rest), value)})
    if _is_whole(model, name):
        if value != int(value) or not is_count(int(value)):
            raise InvalidConfiguration(
                "set", f"{name} must be a whole number of at least 1, not {value:g}"
            )
        value = int(value)
    return replace(model, **{name: value})


def _is_whole(model: Any, name: str) -> bool:
    kinds = {field.name: str(field.type) for field in fields(model)}
    return kinds[name] in ("int", LEFT_OUT[0])


def relative_slope(model: CostModel, graph: TaskGraph, path: tuple[str, ...]) -> Costs:
    """The derivative of the costs by the logarithm of a number inside the model.

    By central differences: exact for what is proportional to the number or to
    its inverse to nine digits.
    """
    step = 2.0**-15  # a power of two: 1 + step and 1 - step are exact
    value = number_at(model, path)
    above: Costs = with_number(model, path, value * (1 + step)).costs(graph)
    below: Costs = with_number(model, path, value * (1 - step)).costs(graph)

    def slope(column: str) -> Seconds:
        difference: Seconds = getattr(above, column) - getattr(below, column)
        return difference / (2 * step)

    return replace(
        above, seconds=slope("seconds"), bytes=slope("bytes"), bandwidth=slope("bandwidth")
    )
