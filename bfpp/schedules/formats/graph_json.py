"""Task graphs as JSON: written to be read by other tools, and checked when read.

One object: `format`, `schedule`, `layout`, `communication`, `lanes` (rank, stream,
peer), `templates` (operation, unit, and the operation and share of each piece), and
`tasks`, a list for each column; `dependencies` holds a list for each task. `posts` has a list for
each of rank, transfer, is_send (0 or 1) and after, in the order in which ranks post. Templates,
posts and the columns `piece` and `block` may be absent. Reading checks the form alone;
`bfpp.schedules.validity` checks the meaning.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

from bfpp.schedules.columns import NONE, Groups, Integers
from bfpp.schedules.errors import InvalidConfiguration, InvalidFile, chosen
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.graph.templates import Piece, Templates
from bfpp.schedules.layout.layout import MOST_RANKS, Layout
from bfpp.schedules.operations.operations import OPERATIONS, operation_named
from bfpp.schedules.operations.streams import stream_named
from bfpp.schedules.orders.posts import NOWHERE, Posts, posts_of
from bfpp.schedules.reading import NotJson, not_of_format, parsed
from bfpp.schedules.settings.sharding import CHOICES, Communication, Sharding

FORMAT = "bfpp task graph 2"


class MalformedGraph(InvalidFile):
    """A text that does not hold a task graph; the reason is one line."""


def write_graph(graph: TaskGraph) -> str:
    """The graph as JSON text; `read_graph` gives it back."""
    return json.dumps(graph_record(graph)) + "\n"


def graph_record(graph: TaskGraph) -> dict[str, Any]:
    """The graph as the object that its JSON text holds; `recorded_graph` gives it back."""
    columns = {name: getattr(graph, name).tolist() for name in COLUMNS}
    columns["operation"] = [OPERATIONS[code].name for code in columns["operation"]]
    start, member = graph.dependencies.start.tolist(), graph.dependencies.member.tolist()
    columns["dependencies"] = [member[start[task] : start[task + 1]] for task in range(len(graph))]
    return {
        "format": FORMAT,
        "schedule": graph.schedule,
        "layout": asdict(graph.layout),
        "communication": asdict(graph.communication),
        "lanes": [[lane.rank, lane.stream.name, lane.peer] for lane in graph.lanes],
        "templates": [
            [operation.name, unit, [[piece.operation.name, piece.share] for piece in template]]
            for (operation, unit), template in graph.templates.items()
        ],
        "tasks": columns,
        "posts": {name: each.astype(int).tolist() for name, each in graph.posts._asdict().items()},
    }


def read_graph(text: str | bytes) -> TaskGraph:
    """The graph of a JSON text; raises `MalformedGraph` with the reason."""
    try:
        record = parsed(text)
    except NotJson as error:
        raise MalformedGraph(error.reason) from None
    return recorded_graph(record)


def recorded_graph(record: Any) -> TaskGraph:
    """The graph of an object read from JSON; raises `MalformedGraph` with the reason."""
    if fault := not_of_format(record, "a task graph", FORMAT):
        raise MalformedGraph(fault)
    try:
        graph = _graph(record)
    except MalformedGraph:
        raise
    except InvalidConfiguration as error:
        raise MalformedGraph(f"the layout cannot be: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MalformedGraph(f"is not a task graph: {type(error).__name__} {error}") from None
    _require_form(graph)
    return graph


def _graph(record: dict[str, Any]) -> TaskGraph:
    nothing = [NONE] * len(record["tasks"]["operation"])
    tasks = {"piece": nothing, "block": nothing, **record["tasks"]}
    columns = {name: _column(tasks[name], name) for name in COLUMNS[1:]}
    operation = np.array([operation_named(name) for name in tasks["operation"]], dtype=np.int8)
    lists = tasks["dependencies"]
    if not all(isinstance(each, list) for each in lists):
        raise MalformedGraph("column dependencies does not hold lists")
    start = np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)])
    return TaskGraph(
        schedule=str(record["schedule"]),
        layout=_layout(record["layout"]),
        communication=_communication(record["communication"]),
        lanes=tuple(
            Lane(int(rank), stream_named(name), int(peer)) for rank, name, peer in record["lanes"]
        ),
        operation=operation,
        templates=_templates(record.get("templates", [])),
        dependencies=Groups(start, _column(list(chain.from_iterable(lists)), "dependencies")),
        posts=_posts(record.get("posts", {})),
        **columns,
    )


def _column(values: object, name: str) -> Integers:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise MalformedGraph(f"column {name} does not hold whole numbers")
    return np.array(values, dtype=np.int32)


def _posts(record: dict[str, Any]) -> Posts:
    if not record:
        return NOWHERE
    columns = [_column(record[name], f"posts: {name}") for name in Posts._fields]
    if len({*map(len, columns)}) > 1:
        raise MalformedGraph("posts: their columns are not of one length")
    return posts_of(np.stack(columns, axis=1))


def _templates(record: list[Any]) -> Templates:
    return {
        (operation_named(name), int(unit)): tuple(
            Piece(operation_named(piece), float(share)) for piece, share in pieces
        )
        for name, unit, pieces in record
    }


def _layout(record: dict[str, Any]) -> Layout:
    record = {"slices": 1, **record}
    for name in ("pp", "microbatches", "slices"):
        if type(record[name]) is not int:
            raise MalformedGraph(f"layout: {name} must be a whole number, not {record[name]!r}")
    if record["pp"] > MOST_RANKS:
        raise MalformedGraph(f"layout: pp must be {MOST_RANKS:,} at most, not {record['pp']:,}")
    if record["slices"] > 0 and record["microbatches"] % record["slices"]:
        raise MalformedGraph(f"layout: slices must divide microbatches, not {record['slices']:,}")
    copies = record.get("copies", [])
    if not isinstance(copies, list):
        raise MalformedGraph("layout: copies must be a list of placements")
    for name, column in (
        ("placement", record["placement"]),
        ("units_per_stage", record["units_per_stage"]),
        *(("copies", copy) for copy in copies),
    ):
        _column(column, f"layout: {name}")
    return Layout(**record)


FLAGS = "pp_overlap", "dp_overlap", "clipping", "eager", "hybrid", "tied_embeddings", "muon"
"""Fields of `Communication` that are true or false."""


def _communication(record: dict[str, Any]) -> Communication:
    for name in FLAGS:
        if not isinstance(record.get(name, False), bool):
            raise MalformedGraph(f"communication: {name} must be true or false")
    named = {
        name: chosen(kind, name, record[name]) for name, kind in CHOICES.items() if name in record
    }
    if record.get("prefetch") == 1 and named.get("sharding") is not Sharding.FULL:
        record = {**record, "prefetch": None}  # files have had 1 where there was none
    communication = Communication(**{**record, **named})
    communication.require()
    return communication


def _require_form(graph: TaskGraph) -> None:
    """Refuse columns of unequal length, and numbers of tasks or lanes that are not there.

    A layout of more passes than there are tasks is refused too: no memory need be spent on it.
    """
    tasks = len(graph)
    units, microbatches = graph.layout.units, graph.layout.microbatches
    if units * microbatches > tasks:
        raise MalformedGraph(
            f"has {tasks} tasks, too few for {microbatches} microbatches in {units} units"
        )
    for name in COLUMNS:
        if getattr(graph, name).shape != (tasks,):
            raise MalformedGraph(
                f"column {name} does not hold one number for each of {tasks} tasks"
            )
    if len(graph.dependencies.start) != tasks + 1:
        raise MalformedGraph(
            f"column dependencies does not hold one list for each of {tasks} tasks"
        )
    limits = {
        "dependencies": (graph.dependencies.member, 0, tasks),
        "lane": (graph.lane, 0, len(graph.lanes)),
        "peer_lane": (graph.peer_lane, -1, len(graph.lanes)),
        "block": (graph.block, -1, tasks),
        "posts: rank": (graph.posts.rank, 0, graph.layout.pp),
        "posts: transfer": (graph.posts.transfer, 0, tasks),
        "posts: after": (graph.posts.after, -1, tasks),
    }
    for name, (numbers, least, limit) in limits.items():
        outside = (numbers < least) | (numbers >= limit)
        if outside.any():
            raise MalformedGraph(f"{name}: there is no number {numbers[np.argmax(outside)]}")
