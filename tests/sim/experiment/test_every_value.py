"""Every value of an experiment changes a prediction, is refused, or is said to have no effect."""

from __future__ import annotations

import csv
import json

import pytest

from bfpp.command_line import main
from bfpp.schedules import InvalidInput
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import experiment_of
from bfpp.sim.experiment.values import OPTIONS, of_group
from bfpp.sim.experiment.values.option import UNEVEN
from bfpp.sim.experiment.without_effect import NEEDS, without_effect
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import compare
from bfpp.traces.timeline.metrics import rank_metrics

ABSTRACT = {
    "schedule": "depth-first", "pp": 2, "loops": 2, "microbatches": 4, "sharding": "full",
    "gather": 3, "reduce": 5, "forward": 1, "transfer": 0.5, "optimizer": 0.1, "norm": 0.2,
    "host_copy": 5, "tied_all_reduce": 0.3, "all_reduce": 1,
}  # fmt: skip
DENSE = {
    "schedule": "1f1b", "pp": 2, "dp": 4, "microbatches": 4, "model": "llama3-8b", "layers": 4,
    "cluster": "dgx-h100", "implementation": "current",
}  # fmt: skip
PARALLEL = {**DENSE, "tp": 2, "cp": 2, "precision": "fp8-delayed"}
SHARDED = {**DENSE, "schedule": "depth-first", "loops": 2, "sharding": "full", "seq_length": 512}
EXPERTS = {**DENSE, "model": "deepseek-v3", "ep": 4, "precision": "fp8-delayed"}
OFFLOAD = {**DENSE, "offload": "all"}
SLOW = "[clusters.dgx-h100.device]\nmatmul_efficiency = 0.3\n"
OF_ANOTHER = SLOW.replace("dgx-h100", "dgx-a100")

ACTS = {
    "pp": (DENSE, 4),
    "dp": (DENSE, 8),
    "tp": (DENSE, 2),
    "cp": (DENSE, 2),
    "ep": (EXPERTS, 2),
    "dp_replicate": (SHARDED, 2),
    "microbatches": (DENSE, 8),
    "microbatch_size": (DENSE, 2),
    "loops": (SHARDED, 1),
    "units_per_stage": (DENSE, 1),
    "sharding": (DENSE, "full"),
    "pp_overlap": (DENSE, "false"),
    "dp_overlap": (DENSE, "false"),
    "clipping": (DENSE, "true"),
    "tied_embeddings": (ABSTRACT, "true"),
    "p2p": (DENSE, "batched"),
    "eager": ({**ABSTRACT, "p2p": "fifo"}, "true"),
    "gather_per": (SHARDED, "step"),
    "reduce_per": (ABSTRACT, "step"),
    "run_length": (ABSTRACT, 1),
    "weight_buffers": (SHARDED, 4),
    "prefetch": ({**ABSTRACT, "weight_buffers": 4}, 1),
    "offload": (DENSE, "all"),
    "offload_ahead": (OFFLOAD, 3),
    "forward": (ABSTRACT, 2),
    "backward": (ABSTRACT, 5),
    "backward_input": (ABSTRACT, 4),
    "backward_weight": (ABSTRACT, 4),
    "forward_backward": ({"schedule": "dualpipe", "pp": 2, "microbatches": 8}, 2),
    "transfer": (ABSTRACT, 1),
    "gather": (ABSTRACT, 4),
    "reduce": (ABSTRACT, 6),
    "optimizer": (ABSTRACT, 1),
    "norm": ({**ABSTRACT, "clipping": "true"}, 1),
    "all_reduce": ({**ABSTRACT, "dp": 4, "dp_replicate": 2}, 9),
    "host_copy": ({**ABSTRACT, "offload": "all"}, 9),
    "tied_all_reduce": ({**ABSTRACT, "tied_embeddings": "true"}, 9),
    "model": (DENSE, "bert-6.6b"),
    "layers": (DENSE, 8),
    "seq_length": (DENSE, 1024),
    "prediction": (EXPERTS, "false"),
    "cluster": (DENSE, "dgx-a100"),
    "implementation": (DENSE, "megatron"),
    "precision": (DENSE, "fp32"),
    "quantised_weights": (PARALLEL, "true"),
    "update_rule": (DENSE, "sgd"),
    "moments": (DENSE, "bf16"),
    "master_weights": (DENSE, "fp16"),
    "main_gradients": (DENSE, "bf16"),
    "quantised_dispatch": (EXPERTS, "true"),
    "quantised_attention": (PARALLEL, "true"),
    "quantised_head": (PARALLEL, "true"),
    "quantised_activation": (DENSE, "true"),
    "recompute": (DENSE, "full"),
    "offload_share": ({**OFFLOAD, "pp": 4, "microbatches": 8}, 0.2),
    "offload_modules": (OFFLOAD, "core_attn"),
    "attention": (DENSE, "unfused"),
    "sequence_parallel": (PARALLEL, "false"),
    "tp_overlap": (PARALLEL, "chunked"),
    "cp_comm": (PARALLEL, "all-gather"),
    "capacity_factor": (EXPERTS, 2),
    "expert_imbalance": (EXPERTS, 2),
    "dispatch": (EXPERTS, "deduplicated"),
    "shared_overlap": (EXPERTS, "true"),
    "microbatch_overlap": (EXPERTS, "true"),
    "fused_experts": (EXPERTS, "true"),
    "fused_router": (EXPERTS, "true"),
    "cuda_graphs": ({**DENSE, "seq_length": 64}, "true"),
    "cut": (DENSE, "1,3"),
    "balance": (DENSE, "time"),
    "constants": (DENSE, SLOW),
}
"""For each value, an experiment in which another one than it has must change what is predicted."""

LISTED = {
    "profile": "its file says all costs: tests/sim/costs/measured/test_profile.py",
    **dict.fromkeys(of_group(UNEVEN), "replicas differ: tests/sim/experiment/test_uneven.py"),
}
"""Values that no row above has, and why."""

HIDDEN = {
    "cuda_graphs": "the host is ahead of the device anyhow",
    "dp_overlap": "what would overlap comes after all compute",
    "eager": "receives that are posted ahead of time wait for nothing",
    "prefetch": "there are no more buffers to gather into, or no further run",
    "units_per_stage": "is what it is anyhow",
    "loops": "is what it is anyhow",
    "sharding": "is what it is anyhow",
    "run_length": "runs are as short anyhow",
    "reduce_per": "a unit has one run",
    "gather_per": "a unit has one run",
    "weight_buffers": "there are as many buffers as units",
    "balance": "layers are balanced anyhow",
    "all_reduce": "replicas of one group have none",
}
"""Values that change nothing in some experiments, and why that is as it should be."""


@pytest.fixture
def of(tmp_path):
    """Makes an experiment of values; constants are in a file."""
    return lambda values: experiment_of(written(values, tmp_path))


def written(values, folder):
    """Values as text, and constants as the name of a file."""
    values = {name: str(value) for name, value in values.items()}
    if "constants" in values:
        (folder / "constants.toml").write_text(values["constants"])
        values["constants"] = str(folder / "constants.toml")
    return values


@pytest.fixture
def predicted(of, tmp_path):
    """Predicts values: those of a model as a table's row, others as a timeline."""

    def predict(values):
        if "model" in values:
            values = written(values, tmp_path)
            path = tmp_path / "table.csv"
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([[*values, "step_seconds"], [*values.values(), 1]])
            [row] = read_measurements(path)
            return dict(compare(row).predicted)
        experiment = of(values)
        timeline = simulate(experiment.graph(), experiment.costs)
        return timeline.step_time, [each.peak_microbatches for each in rank_metrics(timeline)]

    return predict


def test_every_value_has_a_row():
    assert {*ACTS, *LISTED} == {*OPTIONS}
    assert not {*ACTS} & {*LISTED}
    assert {*NEEDS} <= {*ACTS, *LISTED}


@pytest.mark.parametrize("name", ACTS)
def test_a_value_changes_what_is_predicted(name, of, predicted):
    base, value = ACTS[name]
    assert predicted({**base, name: value}) != predicted(base)
    assert name not in without_effect(of({**base, name: value}))


@pytest.mark.parametrize(
    "base",
    [ABSTRACT, DENSE, SHARDED, EXPERTS],
    ids=["abstract", "dense", "sharded", "experts"],
)
def test_elsewhere_a_value_acts_or_is_refused_or_said_to_have_no_effect(base, of, predicted):
    usual = predicted(base)
    for name, (_, value) in ACTS.items():
        try:
            changed = predicted({**base, name: value})
        except InvalidInput:
            continue
        said = without_effect(of({**base, name: value}))
        assert (changed == usual) == (name in said) or name in HIDDEN, name


def test_constants_of_another_cluster_are_said_to_have_no_effect(of, predicted):
    other = {**DENSE, "constants": OF_ANOTHER}
    assert predicted(other) == predicted(DENSE)
    assert [*without_effect(of(other))] == ["constants"]


def test_simulate_says_what_has_no_effect(capsys):
    given = "--model llama3-8b --cluster dgx-h100 --implementation current --capacity-factor 2"
    assert main(["simulate", "1f1b", *given.split(), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["without_effect"] == {"capacity_factor": "experts in the model"}
    assert main(["simulate", "1f1b", *given.split()]) == 0
    said = "1f1b does not depend on --capacity-factor, which needs experts in the model"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["simulate", "1f1b", *given.split()[:-2], "--json"]) == 0
    assert "without_effect" not in json.loads(capsys.readouterr().out)
