"""The front door: the command line, and the names that a user imports.

>>> import bfpp
>>> graph = bfpp.build_graph("breadth-first", bfpp.Layout(4, 8, stages_per_rank=4))
>>> timeline = bfpp.simulate(graph, bfpp.AbstractCosts())
>>> bfpp.bubble(timeline)
0.09375
"""

from schedules import (
    Communication,
    InvalidConfiguration,
    InvalidInput,
    Layout,
    Operation,
    Schedule,
    Sharding,
    TaskGraph,
    build_graph,
    lower,
    schedules,
)
from schedules.validity import Violation, violations
from sim.cluster import Cluster, load_cluster
from sim.costs import AbstractCosts, CostModel, Costs
from sim.engines import simulate
from sim.model import Transformer, load_model
from sim.physical import PhysicalCosts
from traces.difference import Difference, difference
from traces.html import Panel, write_html
from traces.metrics import bubble, rank_metrics
from traces.perfetto import write_perfetto
from traces.svg import SvgPanel, write_svg
from traces.text import text
from traces.timeline import Timeline
from traces.timeline_file import load_timeline, save_timeline

__version__ = "0.1.0"

__all__ = [
    "AbstractCosts",
    "Cluster",
    "Communication",
    "CostModel",
    "Costs",
    "Difference",
    "InvalidConfiguration",
    "InvalidInput",
    "Layout",
    "Operation",
    "Panel",
    "PhysicalCosts",
    "Schedule",
    "Sharding",
    "SvgPanel",
    "TaskGraph",
    "Timeline",
    "Transformer",
    "Violation",
    "bubble",
    "build_graph",
    "difference",
    "load_cluster",
    "load_model",
    "load_timeline",
    "lower",
    "rank_metrics",
    "save_timeline",
    "schedules",
    "simulate",
    "text",
    "violations",
    "write_html",
    "write_perfetto",
    "write_svg",
]
