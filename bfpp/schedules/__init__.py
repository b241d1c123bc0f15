"""Schedules, and the task graphs that they are lowered to.

No time passes here, and nothing but numpy is needed (networkx for
`TaskGraph.to_networkx` alone).
"""

from bfpp.schedules.configuration import Configuration, build_graph
from bfpp.schedules.errors import InvalidConfiguration, InvalidInput
from bfpp.schedules.families.registry import find_schedule, registered_name, registered_schedules
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.graph.tasks import Task
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.lowering import Deadlock, lower
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.steps import Order, Schedule
from bfpp.schedules.settings.degrees import Degrees
from bfpp.schedules.settings.sharding import P2P, Communication, Per, Sharding

__all__ = [
    "P2P",
    "Communication",
    "Configuration",
    "Deadlock",
    "Degrees",
    "InvalidConfiguration",
    "InvalidInput",
    "Lane",
    "Layout",
    "Operation",
    "Order",
    "Per",
    "Schedule",
    "Sharding",
    "Task",
    "TaskGraph",
    "build_graph",
    "find_schedule",
    "lower",
    "registered_name",
    "registered_schedules",
]
