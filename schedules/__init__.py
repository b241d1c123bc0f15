"""What runs, and in which order: schedules, and the task graph they make.

No time passes here, and nothing but numpy is needed (networkx for
`TaskGraph.to_networkx` alone).
"""

from bfpp.schedules.communication import P2P, Communication, Per, Sharding
from bfpp.schedules.configuration import Configuration
from bfpp.schedules.degrees import Degrees
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.invalid import InvalidConfiguration, InvalidInput
from bfpp.schedules.layout import Layout
from bfpp.schedules.lowering import Deadlock, build_graph, lower
from bfpp.schedules.operations import Operation
from bfpp.schedules.registry import find_schedule, registered_name, registered_schedules
from bfpp.schedules.steps import Order, Schedule
from bfpp.schedules.tasks import Lane, Task

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
