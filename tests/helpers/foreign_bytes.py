"""Every reader of what others wrote: whole inputs, most of them by our own writers, and the call.

What a reader is called with is bytes: those of a file, which it finds in the current folder, or
of a word on the command line.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import bfpp
from bfpp.api.recorded.kernels import load_traces
from bfpp.api.recorded.stragglers import JobExplanation
from bfpp.commands import search
from bfpp.commands.check import FORMATS
from bfpp.commands.schedule import memory_limits
from bfpp.launchers.deepspeed.reading import alone as deepspeed_alone
from bfpp.launchers.deepspeed.settings import settings_of
from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.sources.command_words import is_command
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.recipe_code import filled
from bfpp.options.experiment_file import experiment_text, read_experiment
from bfpp.options.search import parse_fixed, problem_of
from bfpp.reports.explorer.choices import chosen
from bfpp.reports.search.results import Journal
from bfpp.schedules import Communication, InvalidInput, Layout, build_graph, find_schedule
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.formats.orders_file import orders_of_text
from bfpp.schedules.formats.torch_actions import write_actions
from bfpp.schedules.formats.torch_csv import write_orders
from bfpp.schedules.layout.cut import cut_of, stages_of
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.constants import load_constants
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.measured.profile import load_profile
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.sim.costs.parameters import changed, parse_change
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.simumax import read_system
from bfpp.sim.models.model import load_model
from bfpp.sim.presets.files import PRESETS
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.problem import Problem
from bfpp.terminal import number_types
from bfpp.terminal.error_lines import refusing
from bfpp.terminal.parser import Parser, ParserExit
from bfpp.traces.formats.chakra import chakra_files, read_chakra
from bfpp.traces.formats.operations_json import recorded_operations, save_operations
from bfpp.traces.formats.perfetto_reading import is_ours, read_perfetto
from bfpp.traces.formats.perfetto_writing import write_perfetto
from bfpp.traces.formats.text_files import parsed_trace
from bfpp.traces.formats.timeline_json import load_timeline, write_timeline
from bfpp.traces.profiles.device_profile import ActivityKind
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.profiles.nsight import read_nsight
from bfpp.traces.profiles.operation_parquet import read_operations
from bfpp.traces.timeline.operation_table import OperationTable
from tests.commands.test_misread import CONSTANTS
from tests.helpers.chakra_files import one_rank
from tests.helpers.damage import changed_json, damaged
from tests.helpers.damaged_forms import (
    changed_columns,
    changed_lines,
    changed_messages,
    changed_tables,
    changed_toml,
    either,
)
from tests.helpers.device_traces import Ran, device_trace, event, events_of
from tests.helpers.fuzzing import Reader
from tests.helpers.launch_recipe import NAME, RECIPE
from tests.helpers.nsight_files import write_nsight
from tests.helpers.simumax_files import system
from tests.helpers.straggler_jobs import Job, parquet_of
from tests.sim.costs.measured.test_profile import PROFILE
from tests.sim.costs.test_physical import MEASUREMENTS
from tests.sim.models.test_hugging_face import GPT2, LLAMA
from tests.sim.models.test_hugging_face_experts import DEEPSEEK
from tests.traces.formats.test_timeline_file import with_memory
from tests.traces.profiles.test_import import named, on_a_gpu, simulated
from tests.traces.profiles.test_import_nsight import by_pytorch, seen

TEXT = damaged
JSON = either(damaged, changed_json)
TOML = either(damaged, changed_toml)
JSON_LINES = either(damaged, changed_lines)
TABLES = either(damaged, changed_tables)
COLUMNS = either(damaged, changed_columns)
MESSAGES = either(damaged, changed_messages)

ORDERS = "# transfer = 0.5\n# p2p = fifo\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SMALL = Layout(2, 2)
STEP = {"pp": 2, "microbatches": 2}


def of_file(name: str, read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Reads bytes as a file of that name."""

    def written(contents: bytes) -> object:
        Path(name).write_bytes(contents)
        return read(name)

    return written


def of_word(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Reads bytes as the command line has them."""
    return lambda contents: read(os.fsdecode(contents))


def texts(*whole: str) -> Callable[[], list[bytes]]:
    return lambda: [each.encode() for each in whole]


# Timelines, graphs and orders


def _timelines() -> list[bytes]:
    plain = write_timeline(simulated("1f1b", SMALL)).encode()
    slow = bfpp.Experiment("1f1b", pp=2, dp=2, microbatches=2, reduce=0.5, slow="replica=1:1.5")
    replicas = bfpp.predict(slow).whole_timeline
    wholes = [plain, *(write_timeline(each).encode() for each in (with_memory(), replicas))]
    return [*wholes, gzip.compress(plain)]


def _graphs() -> list[bytes]:
    sharded = Communication(sharding="full", clipping=True)
    layouts = {"zb-h1": SMALL, "breadth-first": Layout(2, 2, 2)}
    return [
        write_graph(build_graph(name, layout, sharded)).encode() for name, layout in layouts.items()
    ]


def _orders() -> list[bytes]:
    graph = build_graph("1f1b", SMALL, Communication(sharding="full"))
    halves = write_orders(find_schedule("zb-h1").orders(SMALL))
    fused = "0F0,(0F1;0B0)OVERLAP_F_B,0B1 \n"
    return [each.encode() for each in (ORDERS, write_actions(graph), halves, fused)]


def _check(contents: bytes) -> object:
    return FORMATS["torch"]("orders.csv", contents, {})


# Settings


def _experiments() -> list[bytes]:
    priced = bfpp.Experiment("zb-v", **STEP, forward=1.5, transfer=0.25, sharding="full")
    modelled = bfpp.Experiment(
        "breadth-first", **STEP, loops=2, model="bert-6.6b", cluster="dgx1-v100", tp=4,
        recompute="full", dp=2, sharding="full",
    )  # fmt: skip
    return [experiment_text(each).encode() for each in (priced, modelled)]


def _presets(kind: str, *names: str) -> Callable[[], list[bytes]]:
    return lambda: [(PRESETS / kind / f"{name}.toml").read_bytes() for name in names]


def _measurements() -> list[bytes]:
    first, *rows = MEASUREMENTS.read_text().splitlines(keepends=True)
    return ["".join([first, *rows[:3]]).encode()]


def _system(name: str) -> object:
    found = read_system(Path(name))
    return found.cluster(load_cluster("dgx-a100")), list(found.rows())


# Traces


def _kineto() -> list[bytes]:
    alone = named(simulated("1f1b", Layout(1, 2)), 0)
    megatron = on_a_gpu(0, "FFBB")
    return [json.dumps(each).encode() for each in (alone, alone["traceEvents"], megatron)]


def _searches() -> list[bytes]:
    named = Path(__file__).parents[2] / "examples" / "searches"
    return [path.read_bytes() for path in sorted(named.glob("*.toml"))]


def _search(name: str) -> Problem:
    parser = Parser()
    search.add_arguments(parser)
    try:
        return problem_of(parser.parse([name]))
    except ParserExit:  # which has said why
        raise InvalidInput(name) from None


def _import_trace(contents: bytes) -> object:
    trace = parsed_trace(contents)
    return read_perfetto(trace) if is_ours(trace) else import_profiles([read_kineto(trace)])


def _devices() -> list[bytes]:
    """Kernels with a group, its launches and steps; and passes without any."""
    group = {"pg_name": "0", "pg_desc": "dp", "pg_size": 2, "ranks": [0, 1]}
    about = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 4}
    ran = [Ran(kind, 4 * kind, 4 * kind + 5, launched=kind) for kind in ActivityKind]
    events = [*events_of(*ran, **about), event("user_annotation", "ProfilerStep#1", 0, 20)]
    whole = device_trace(events, rank=0, world_size=2, pg_config=[group])
    return [json.dumps(whole).encode(), *_kineto()]


def _perfetto() -> list[bytes]:
    timeline = simulated("1f1b", SMALL)
    for name in ("step.json", "step.json.gz"):
        write_perfetto(timeline, name)
    return [Path(name).read_bytes() for name in ("step.json", "step.json.gz")]


def _nsight() -> list[bytes]:
    timeline = simulated("1f1b", SMALL)
    processes = [seen(timeline, rank, by_pytorch) for rank in range(2)]
    return [write_nsight(Path("whole.sqlite"), processes).read_bytes()]


def _chakra() -> list[bytes]:
    """The files of a step of one rank, which alone can be read."""
    return [contents for _, contents in chakra_files(simulated("1f1b", Layout(1, 2)))]


# Jobs

SMALL_JOB = Job(dp=2, pp=2, microbatches=2, steps=(1, 2))


def _job_tables() -> list[bytes]:
    return [parquet_of(SMALL_JOB.columns())]


def _saved_jobs() -> list[bytes]:
    save_operations(read_operations(_job_tables()[0]), "whole.json")
    return [Path("whole.json").read_bytes()]


def _explain_job(table: OperationTable) -> object:
    return json.dumps(JobExplanation(table).record(), allow_nan=False)


# Searches, words and requests


def _problem() -> Problem:
    model = replace(load_model("bert-6.6b"), layers=4, name="small")
    return Problem(model, load_cluster("dgx1-v100"), (2,), (2,), ("gpipe", "1f1b"))


PROBLEM = _problem()


def _journals() -> list[bytes]:
    Path("whole").unlink(missing_ok=True)
    Journal(Path("whole"), PROBLEM).add(evaluate(PROBLEM, configurations(PROBLEM)[:4]))
    return [Path("whole").read_bytes()]


def _cut(text: str) -> object:
    return cut_of(text, 28, stages_of(text) or 4)


def _fixed(text: str) -> object:
    return parse_fixed([text], ["gpipe"])


def _set(text: str) -> object:
    return changed(AbstractCosts(), parse_change(text))


LAYOUT = "Et*5|(t*8|)*2t*7L"
MODULES = json.dumps(
    [["tok_embeddings", *(f"layers.{each}" for each in range(28))], ["norm", "lm_head"]]
)

TYPES = (
    "whole_number", "integer", "number", "seconds", "positive", "not_negative", "share", "seed",
    "gigabytes", "length",
)  # fmt: skip


def _number(text: str) -> object:
    kind, _, said = text.partition(" ")
    with refusing("number", argparse.ArgumentTypeError):
        return getattr(number_types, kind if kind in TYPES else TYPES[0])(said)


def _request(contents: bytes) -> object:
    """The experiments that the explorer is asked for; they are small, or refused before."""
    try:
        choices = json.loads(contents)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, dict):
        raise InvalidInput("400 Bad Request")
    return [each.configuration.layout.tasks for each in chosen(choices).experiments]


REQUESTS = (
    '{"schedule": "1f1b", "beside": "gpipe", "pp": "4", "microbatches": "8", "forward": "1.5"}',
    '{"model": "bert-6.6b", "cluster": "dgx1-v100", "tp": "4", "pp": "4", "precision": "fp16"}',
    json.dumps({"orders": ORDERS, "beside": "", "transfer": "0.25"}),
)

FLAGS = (
    "--num-layers 8 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --num-experts 4 "
    "--micro-batch-size 1 --global-batch-size 8 --pipeline-model-parallel-size 2 "
    "--pipeline-model-parallel-layout 'Et*3|t*5L' --moe-layer-freq '([0]*1+[1]*7)'"
)
SCRIPT = (
    f"N=${{N:-2}}\nARGS=({FLAGS})\nif [ $N -eq 2 ]; then\n  ARGS+=(--bf16)\nfi\n"
    'torchrun --nproc-per-node $((N * 2)) pretrain_gpt.py "${ARGS[@]}"\n'
)
YAML = (
    "MODEL_ARGS: &a\n  --num-layers: 8\n  --hidden-size: 256\n  --num-attention-heads: 4\n"
    "  --seq-length: 128\n  --micro-batch-size: 1\n  --bf16: true\nENV_VARS: *a\n"
)
NEMO = (
    "trainer: {devices: 2, num_nodes: 1, precision: bf16}\nmodel:\n  num_layers: 8\n"
    "  hidden_size: 256\n  num_attention_heads: 4\n  encoder_seq_length: 128\n"
    "  micro_batch_size: 1\n  tensor_model_parallel_size: 2\n"
)


DEEPSPEED = json.dumps(
    {
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
        "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}, "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
        "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}},
    }
)  # fmt: skip


def _deepspeed(name: str) -> object:
    return deepspeed_alone(name, name, settings_of(name, text_of_file(name)), None, None)


def _torchtitan() -> list[bytes]:
    experiment = bfpp.Experiment(
        "interleaved", **STEP, loops=2, model="llama3-8b", cluster="dgx-h100", dp=2,
        sharding="full",
    )  # fmt: skip
    return [framework_config(experiment, "torchtitan", (0, 2)).text.encode()]


def _command(text: str) -> object:
    if not is_command(text):
        raise InvalidInput("no command that trains")
    return read_launch_file(text)


READERS = {
    "timelines": Reader(_timelines, of_file("step.json", load_timeline), JSON),
    "task graphs": Reader(_graphs, read_graph, JSON),
    "orders": Reader(_orders, lambda contents: orders_of_text("orders.csv", contents), TEXT),
    "orders, checked": Reader(_orders, _check, TEXT),
    "experiment files": Reader(_experiments, of_file("step.toml", read_experiment), TOML),
    "searches": Reader(_searches, of_file("search.toml", _search), TOML),
    "launch scripts": Reader(texts(SCRIPT), of_file("train.sh", read_launch_file), TEXT),
    "launch files in YAML": Reader(
        texts(YAML, NEMO), of_file("job.yaml", read_launch_file), TEXT
    ),
    "DeepSpeed's settings": Reader(
        texts(DEEPSPEED), of_file("ds.json", _deepspeed), JSON
    ),
    "launch commands": Reader(
        texts(f"torchrun pretrain_gpt.py {FLAGS}"), of_word(_command), TEXT
    ),
    "torchtitan's settings": Reader(_torchtitan, of_file("job.toml", read_launch_file), TOML),
    "recipes": Reader(texts(RECIPE), of_file("f.py", lambda name: filled(name, NAME)), TEXT),
    "model files": Reader(
        _presets("models", "bert-6.6b", "llama3-8b"), of_file("model.toml", load_model), TOML
    ),
    "cluster files": Reader(
        _presets("clusters", "dgx1-v100", "dgx-h100"), of_file("cluster.toml", load_cluster), TOML
    ),
    "files of constants": Reader(
        texts(CONSTANTS), of_file("constants.toml", load_constants), TOML
    ),
    "profiles": Reader(texts(as_toml(PROFILE)), of_file("bench.toml", load_profile), TOML),
    "config.json": Reader(
        texts(*map(json.dumps, (LLAMA, GPT2, DEEPSEEK))), of_file("config.json", load_model), JSON
    ),
    "measured tables": Reader(
        _measurements, of_file("table.csv", lambda name: read_measurements(Path(name))), TEXT
    ),
    "SimuMax systems": Reader(
        texts(json.dumps(system()), json.dumps(system(pcie=True))),
        of_file("system.json", _system),
        JSON,
    ),
    "traces of torch.profiler": Reader(_kineto, _import_trace, JSON),
    "traces of --perfetto": Reader(_perfetto, _import_trace, JSON),
    "Nsight Systems": Reader(
        _nsight,
        of_file("step.sqlite", lambda name: import_profiles(read_nsight(Path(name)))),
        TABLES,
    ),
    "devices, torch.profiler": Reader(
        _devices, of_file("trace.json", lambda name: load_traces([Path(name)], "TRACE").record()),
        JSON,
    ),
    "devices, Nsight Systems": Reader(
        _nsight, of_file("trace.sqlite", lambda name: load_traces([Path(name)], "TRACE").record()),
        TABLES,
    ),
    "Chakra": Reader(_chakra, lambda contents: read_chakra([contents]), MESSAGES),
    "devices, Chakra": Reader(
        lambda: [one_rank(100, 10), one_rank(40, 15)],
        of_file("chakra.0.et", lambda name: load_traces([Path(name)], "TRACE").record()),
        MESSAGES,
    ),
    "tables of jobs": Reader(
        _job_tables, lambda contents: _explain_job(read_operations(contents)), COLUMNS
    ),
    "saved jobs": Reader(
        _saved_jobs, lambda contents: _explain_job(recorded_operations(contents)), JSON
    ),
    "journals of searches": Reader(
        _journals, of_file("journal", lambda name: Journal(Path(name), PROBLEM)), JSON_LINES
    ),
    "--cut": Reader(texts("7,8,8,5", "even", LAYOUT, MODULES), of_word(_cut), TEXT),
    "--recompute": Reader(
        texts("selective", "3", "1,0,2", "mlp,core_attn"), of_word(parse_recomputation), TEXT
    ),
    "--set": Reader(texts("forward=x2", "backward=0.5", "transfer=x1.5"), of_word(_set), TEXT),
    "--fix": Reader(
        texts("tp=1,2,4", "recompute=mlp,core_attn", "layers=8", "sharding=full", "cut=even"),
        of_word(_fixed),
        TEXT,
    ),
    "--memory-limit": Reader(texts("4", "4,3,2", "40GB", "40 GiB"), of_word(memory_limits), TEXT),
    "numbers in options": Reader(
        texts(*(f"{kind} 12" for kind in TYPES[:-1]), "length 84mm", "share 5%"),
        of_word(_number),
        TEXT,
    ),
    "requests to the explorer": Reader(texts(*REQUESTS), _request, JSON),
}  # fmt: skip
"""By what is read; of the executor's, see `tests.helpers.foreign_checkpoints`."""
