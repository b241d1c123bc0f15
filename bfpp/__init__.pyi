"""The public names of `bfpp`, and where each of them lives."""

from .explanation import Explanation as Explanation
from .explanation import explain as explain
from .figures import write_svg as write_svg
from .predictions import Prediction as Prediction
from .predictions import predict as predict
from .schedules import Communication as Communication
from .schedules import Configuration as Configuration
from .schedules import Degrees as Degrees
from .schedules import InvalidConfiguration as InvalidConfiguration
from .schedules import InvalidInput as InvalidInput
from .schedules import Layout as Layout
from .schedules import Operation as Operation
from .schedules import Schedule as Schedule
from .schedules import Sharding as Sharding
from .schedules import TaskGraph as TaskGraph
from .schedules import find_schedule as find_schedule
from .schedules import lower as lower
from .schedules import registered_schedules as registered_schedules
from .schedules.validity import Violation as Violation
from .schedules.validity import violations as violations
from .sim.abstract import AbstractCosts as AbstractCosts
from .sim.cluster import Cluster as Cluster
from .sim.cluster import load_cluster as load_cluster
from .sim.compiled_lowering import build_graph as build_graph
from .sim.costs import CostModel as CostModel
from .sim.costs import Costs as Costs
from .sim.engines import simulate as simulate
from .sim.experiment import Experiment as Experiment
from .sim.experiment import experiment_of as experiment_of
from .sim.model import Transformer as Transformer
from .sim.model import load_model as load_model
from .sim.physical import PhysicalCosts as PhysicalCosts
from .sim.synthesis.synthesis import synthesize as synthesize
from .sweeping import search as search
from .sweeping import sweep as sweep
from .traces.difference import Difference as Difference
from .traces.difference import difference as difference
from .traces.html import write_html as write_html
from .traces.metrics import bubble as bubble
from .traces.metrics import rank_metrics as rank_metrics
from .traces.panel import Panel as Panel
from .traces.perfetto import write_perfetto as write_perfetto
from .traces.text import text as text
from .traces.timeline import Timeline as Timeline
from .traces.timeline_file import load_timeline as load_timeline
from .traces.timeline_file import save_timeline as save_timeline
from .training import train as train

__version__: str

__all__ = [
    "AbstractCosts",
    "Cluster",
    "Communication",
    "Configuration",
    "CostModel",
    "Costs",
    "Degrees",
    "Difference",
    "Experiment",
    "Explanation",
    "InvalidConfiguration",
    "InvalidInput",
    "Layout",
    "Operation",
    "Panel",
    "PhysicalCosts",
    "Prediction",
    "Schedule",
    "Sharding",
    "TaskGraph",
    "Timeline",
    "Transformer",
    "Violation",
    "bubble",
    "build_graph",
    "difference",
    "experiment_of",
    "explain",
    "find_schedule",
    "load_cluster",
    "load_model",
    "load_timeline",
    "lower",
    "predict",
    "rank_metrics",
    "registered_schedules",
    "save_timeline",
    "search",
    "simulate",
    "sweep",
    "synthesize",
    "text",
    "train",
    "violations",
    "write_html",
    "write_perfetto",
    "write_svg",
]
