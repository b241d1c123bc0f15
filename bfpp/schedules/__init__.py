"""Schedules, and the task graphs that they are lowered to: numpy alone, and no time passes."""

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
