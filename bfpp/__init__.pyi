"""The public names of `bfpp`, and where each of them lives."""

from .api.explanation import Explanation as Explanation
from .api.explanation import explain as explain
from .api.predictions import Prediction as Prediction
from .api.predictions import predict as predict
from .api.predictions import simulate as simulate
from .api.print_figures import write_svg as write_svg
from .api.recorded.kernels import TraceExplanation as TraceExplanation
from .api.recorded.kernels import explain_traces as explain_traces
from .api.recorded.stragglers import JobExplanation as JobExplanation
from .api.recorded.stragglers import explain_job as explain_job
from .api.running.training import train as train
from .api.sweeping import ResultRow as ResultRow
from .api.sweeping import ResultRows as ResultRows
from .api.sweeping import search as search
from .api.sweeping import sweep as sweep
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
from .schedules import build_graph as build_graph
from .schedules import find_schedule as find_schedule
from .schedules import lower as lower
from .schedules import registered_schedules as registered_schedules
from .schedules.orders.steps import backward as backward
from .schedules.orders.steps import backward_input as backward_input
from .schedules.orders.steps import backward_weight as backward_weight
from .schedules.orders.steps import forward as forward
from .schedules.replicas.joint_graph import JointGraph as JointGraph
from .schedules.replicas.joint_graph import joined as joined
from .schedules.validity import Violation as Violation
from .schedules.validity import violations as violations
from .schedules.validity.meetings import joint_violations as joint_violations
from .sim.cluster.cluster import Cluster as Cluster
from .sim.cluster.cluster import load_cluster as load_cluster
from .sim.costs.abstract import AbstractCosts as AbstractCosts
from .sim.costs.physical import PhysicalCosts as PhysicalCosts
from .sim.engines.cost_model import CostModel as CostModel
from .sim.engines.cost_model import Costs as Costs
from .sim.engines.engines import simulate_joint as simulate_joint
from .sim.experiment.experiment import Experiment as Experiment
from .sim.experiment.experiment import experiment_of as experiment_of
from .sim.models.model import Transformer as Transformer
from .sim.models.model import load_model as load_model
from .sim.synthesis.synthesis import synthesize as synthesize
from .traces.explain.difference import Difference as Difference
from .traces.explain.difference import difference as difference
from .traces.figures.panel import Panel as Panel
from .traces.figures.terminal import text as text
from .traces.formats.perfetto_writing import write_perfetto as write_perfetto
from .traces.formats.timeline_json import load_timeline as load_timeline
from .traces.formats.timeline_json import save_timeline as save_timeline
from .traces.page.html import write_html as write_html
from .traces.stragglers.gains import Remedy as Remedy
from .traces.timeline.joint_timeline import JointTimeline as JointTimeline
from .traces.timeline.metrics import bubble as bubble
from .traces.timeline.metrics import rank_metrics as rank_metrics
from .traces.timeline.timeline import Replicas as Replicas
from .traces.timeline.timeline import Timeline as Timeline

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
    "JobExplanation",
    "JointGraph",
    "JointTimeline",
    "Layout",
    "Operation",
    "Panel",
    "PhysicalCosts",
    "Prediction",
    "Remedy",
    "Replicas",
    "ResultRow",
    "ResultRows",
    "Schedule",
    "Sharding",
    "TaskGraph",
    "Timeline",
    "TraceExplanation",
    "Transformer",
    "Violation",
    "backward",
    "backward_input",
    "backward_weight",
    "bubble",
    "build_graph",
    "difference",
    "experiment_of",
    "explain",
    "explain_job",
    "explain_traces",
    "find_schedule",
    "forward",
    "joined",
    "joint_violations",
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
    "simulate_joint",
    "sweep",
    "synthesize",
    "text",
    "train",
    "violations",
    "write_html",
    "write_perfetto",
    "write_svg",
]
