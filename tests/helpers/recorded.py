"""Recorded results of a wide sample of configurations: graphs, times, predictions.

`python -m tests.helpers.recorded [PART ...]` records it again, all or some parts, into
`tests/golden/recorded.json`: only for a change that is meant to change results. A graph is
recorded as a hash of words that do not depend on how the columns are coded: operations and
lanes by name, numbers as they are.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from bfpp.schedules import (
    Communication,
    Degrees,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import compare
from bfpp.sim.models.model import load_model
from tests.helpers import GOLDEN

FILE = GOLDEN / "recorded.json"
GRAPHS, PREDICTIONS = 400, 60
MEASURED = files("bfpp") / "paper" / "measurements.csv"

NAMES = {
    Operation.FORWARD: "forward",
    Operation.BACKWARD: "backward",
    Operation.BACKWARD_INPUT: "backward input",
    Operation.BACKWARD_WEIGHT: "backward weight",
    Operation.TRANSFER_ACTIVATIONS: "transfer activations",
    Operation.TRANSFER_GRADIENTS: "transfer gradients",
    Operation.GATHER: "gather",
    Operation.REDUCE: "reduce",
    Operation.OPTIMIZER: "optimizer",
    Operation.NORM: "norm",
    Operation.ALL_REDUCE: "all-reduce",
    Operation.TIED_ALL_REDUCE: "tied all-reduce",
    Operation.OFFLOAD: "offload",
    Operation.RELOAD: "reload",
}


class Case(NamedTuple):
    """A step, by plain values."""

    schedule: str
    ranks: int
    microbatches: int
    stages_per_rank: int
    sequence: int | None
    sharding: str
    transfers_overlap: bool
    data_overlaps: bool
    clipping: bool

    @property
    def name(self) -> str:
        return " ".join(map(str, self))

    def graph(self) -> TaskGraph:
        parameters = {"sequence": self.sequence} if self.sequence else {}
        schedule = find_schedule(self.schedule, **parameters)
        layout = schedule.divided(self.ranks, self.microbatches, self.stages_per_rank)
        communication = Communication(
            Sharding(self.sharding), self.transfers_overlap, self.data_overlaps, self.clipping
        )
        return build_graph(schedule, layout, communication)


def cases(count: int, chance: random.Random) -> Iterator[Case]:
    """Steps of up to a few thousand tasks, over all that a graph depends on."""
    for _ in range(count):
        schedule = chance.choice(["gpipe", "1f1b", "depth-first", "breadth-first"])
        ranks, stages = chance.randint(1, 8), chance.choice([1, 1, 2, 3, 4, 7])
        microbatches, sequence = chance.randint(1, 20), None
        if schedule == "depth-first":
            sequence = chance.choice([None, ranks, ranks + chance.randint(1, 5)])
            microbatches = (sequence or ranks) * chance.randint(1, 3)
        overlap, data, clipping = (chance.random() < share for share in (0.7, 0.7, 0.3))
        sharding = chance.choice(["none", "partial", "full"])
        yield Case(
            schedule, ranks, microbatches, stages, sequence, sharding, overlap, data, clipping
        )


def graph_hash(graph: TaskGraph) -> str:
    """A hash of every column, lane and dependency, by name."""
    digest = sha256()
    for lane in graph.lanes:
        stream = lane.stream.name.lower().replace("_", " ")
        digest.update(f"{lane.rank} {stream} {lane.peer};".encode())
    numbers = ("rank", "peer", "unit", "microbatch", "lane", "peer_lane")
    columns = [getattr(graph, name).tolist() for name in numbers]
    columns += [graph.weight_buffer.tolist(), graph.gradient_buffer.tolist()]
    for task, operation in enumerate(graph.operation.tolist()):
        words: list[object] = [NAMES[OPERATIONS[operation]], *(column[task] for column in columns)]
        words += sorted(graph.dependencies.of(task).tolist())
        digest.update((" ".join(map(str, words)) + ";").encode())
    return digest.hexdigest()


def of_graphs() -> dict[str, list[str | float]]:
    """By case: its graph's hash, and the step time with drawn costs."""
    chance, found = random.Random("graphs"), {}
    for case in cases(GRAPHS, chance):
        graph = case.graph()
        names = ("forward", "backward", "transfer", "gather", "reduce", "optimizer", "norm")
        costs = AbstractCosts(**{name: chance.uniform(0, 2) for name in names})
        found[case.name] = [graph_hash(graph), simulate(graph, costs).step_time]
    return found


def of_predictions() -> dict[str, dict[str, float]]:
    """By case, model and cluster: step time, throughput and memory."""
    chance, found = random.Random("predictions"), {}
    for case in cases(PREDICTIONS, chance):
        model = load_model(chance.choice(["bert-52b", "bert-6.6b", "gpt3-175b"]))
        ranks = chance.choice([1, 2, 4, 8])
        stages = model.layers // ranks // chance.choice([1, 2, 4])
        microbatches = 2 * ranks if case.schedule == "depth-first" else case.microbatches
        cluster = chance.choice(["dgx1-v100", "dgx-a100", "dgx1-v100-ethernet"])
        sizes = {
            "tensor_parallel": chance.choice([1, 2, 8]),
            "data_parallel": chance.choice([1, 4, 16]),
            "microbatch_size": chance.choice([1, 2]),
        }
        implementation = chance.choice(["paper", "megatron"])
        case = case._replace(
            ranks=ranks, microbatches=microbatches, stages_per_rank=stages, sequence=None
        )
        physical = PhysicalCosts(
            model=model,
            cluster=load_cluster(cluster),
            implementation=IMPLEMENTATIONS[implementation],
            degrees=Degrees(dp=sizes["data_parallel"], tp=sizes["tensor_parallel"]),
            microbatch_size=sizes["microbatch_size"],
        )
        timeline = simulate(case.graph(), physical)
        record = predict(timeline, physical)
        name = f"{case.name} {model.name} {cluster} {implementation} {sizes}"
        found[name] = {
            "step_time": timeline.step_time,
            "tflops_per_gpu": record["tflops_per_gpu"],
            "memory_gb": record["memory_gb"],
            "memory_min_gb": record["memory_min_gb"],
            "memory_largest_gb": record["memory_largest_gb"],
        }
    return found


H100 = {"cluster": "dgx-h100", "tp": 1}
B200 = {"cluster": "dgx-b200", "tp": 1}
RACK = {"cluster": "gb200-nvl72", "tp": 1}
DEEP = {"model": "deepseek-v3", "microbatches": 8, "sharding": "partial"}
MODERN: tuple[dict[str, Any], ...] = (
    H100 | {"schedule": "1f1b", "model": "llama3-70b", "pp": 4, "tp": 8, "dp": 2},
    H100 | {"schedule": "zb-h1", "model": "llama3-8b", "pp": 4, "precision": "fp8-current"},
    H100
    | {"schedule": "breadth-first", "model": "llama3-8b", "pp": 2, "loops": 4, "dp": 8}
    | {"sharding": "full", "recompute": "full", "implementation": "fsdp"},
    H100
    | {"schedule": "interleaved", "model": "llama3-405b", "pp": 8, "loops": 2, "tp": 8}
    | {"cp": 2, "seq_length": 16384, "layers": 112, "precision": "fp8-delayed"}
    | {"sharding": "partial"},
    H100
    | {"schedule": "1f1b", "model": "mixtral-8x22b", "pp": 4, "tp": 2, "dp": 8, "ep": 8}
    | {"expert_imbalance": 1.2},
    H100
    | DEEP
    | {"schedule": "dualpipe", "pp": 2, "dp": 64, "ep": 64, "dispatch": "deduplicated"}
    | {"precision": "fp8-block", "quantised_dispatch": True},
    H100
    | DEEP
    | {"schedule": "1f1b", "pp": 8, "tp": 2, "dp": 32, "ep": 32}
    | {"recompute": "mla_up_proj,layernorm", "shared_overlap": True, "capacity_factor": 1.25},
    B200
    | {"schedule": "zb-v", "model": "llama3-70b", "pp": 4, "tp": 2, "cp": 2}
    | {"seq_length": 32768, "cp_comm": "all-to-all"},
    B200
    | {"schedule": "1f1b", "model": "llama3-8b", "pp": 2, "precision": "mxfp8", "dp": 4}
    | {"sharding": "partial", "cuda_graphs": True},
    B200
    | {"schedule": "gpipe", "model": "deepseek-v2", "pp": 2, "dp": 16, "ep": 8}
    | {"capacity_factor": 1.0, "fused_router": True},
    B200
    | {"schedule": "1f1b", "model": "gpt-oss-120b", "pp": 2, "dp": 8, "ep": 8}
    | {"precision": "mxfp8", "quantised_attention": True},
    RACK
    | {"schedule": "1f1b", "model": "qwen3-235b", "pp": 2, "dp": 32, "ep": 32}
    | {"precision": "nvfp4", "fused_experts": True, "moments": "bf16"},
    RACK
    | {"schedule": "interleaved", "model": "llama3-70b", "pp": 4, "loops": 5, "tp": 4}
    | {"cp": 2, "cp_comm": "all-gather", "seq_length": 16384, "tp_overlap": "chunked"},
    RACK
    | {"schedule": "breadth-first", "model": "qwen3-30b-a3b", "pp": 4, "loops": 2, "dp": 8}
    | {"ep": 8, "sharding": "full", "microbatches": 8},
    H100
    | {"schedule": "1f1b", "model": "gpt3-5b", "pp": 4, "dp": 4, "tied_embeddings": True}
    | {"sharding": "partial", "clipping": True},
    H100
    | {"schedule": "1f1b", "model": "llama3-70b", "pp": 4, "tp": 8}
    | {"offload": 2, "offload_share": 0.5},
)
"""Steps of today: experts, latent attention, contexts, narrow formats, and hardware for them."""


def of_modern() -> dict[str, list[str | float]]:
    """By case: its graph's hash, the step time, and what is predicted of it."""
    found: dict[str, list[str | float]] = {}
    for values in MODERN:
        experiment = Experiment(**{"microbatches": 8, **values})
        graph, physical = experiment.graph(), experiment.require_physical()
        timeline = simulate(graph, physical)
        record = predict(timeline, physical)
        numbers = [
            record["tflops_per_gpu"],
            record["mfu"],
            record["memory_gb"],
            record["memory_min_gb"],
            record["memory_reserved_high_gb"],
            *record["memory_parts_gb"].values(),
        ]
        found[" ".join(map(str, values.values()))] = [
            graph_hash(graph),
            timeline.step_time,
            *numbers,
        ]
    return found


def of_measurements() -> list[list[float]]:
    """For each row of the paper's measurements: throughput and memory as predicted."""
    rows = read_measurements(Path(str(MEASURED)))
    names = ("tflops_per_gpu", "memory_gb", "memory_min_gb")
    return [[float(compare(row).predicted[name]) for name in names] for row in rows]


PARTS = {
    "graphs": of_graphs,
    "predictions": of_predictions,
    "modern": of_modern,
    "measurements": of_measurements,
}


@cache
def recorded() -> Mapping[str, object]:
    """The contents of the file."""
    found: Mapping[str, object] = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":
    parts = sys.argv[1:] or [*PARTS]
    again = dict(recorded()) | {name: PARTS[name]() for name in parts}
    FILE.write_text(json.dumps(again, indent=0) + "\n")
