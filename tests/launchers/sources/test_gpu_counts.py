"""Numbers of GPUs, where scripts for Slurm and launchers say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.launchers.sources.gpu_counts import gpu_count, slurm_variables

FLAGS = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --vocab-size 32000"
)
MEGATRON = f"pretrain_gpt.py {FLAGS}"
TITAN = "-m torchtitan.train --module llama3 --config llama3_8b"

SCRIPTS = {
    "torchtitan's multinode_trainer.slurm": (
        ("#SBATCH --ntasks=4\n#SBATCH --nodes=4\n#SBATCH --gpus-per-task=8\n"
        f'srun torchrun --nnodes 4 --nproc_per_node 8 {TITAN} "$@"'),
        32,
    ),
    "a task a node, which torchrun divides": (
        ("#SBATCH --nodes=4 --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
        f"srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE {MEGATRON}"),
        32,
    ),
    "a task a GPU": (
        f"#SBATCH -N 4\n#SBATCH --ntasks-per-node 8\nsrun -l python {MEGATRON}",
        32,
    ),
    "tasks of the step on the nodes of the job": (
        f"#SBATCH --nodes=2\nsrun --ntasks-per-node=8 python {MEGATRON}",
        16,
    ),
    "a text that a container's shell runs": (
        ("#SBATCH --nodes=2 --gres=gpu:4\n"
        f'srun bash -c "torchrun --nnodes=${{SLURM_JOB_NUM_NODES}} --nproc-per-node 4 {MEGATRON}"'),
        8,
    ),
    "all GPUs": (f"#SBATCH --gpus=24\nsrun python {MEGATRON}", 24),
    "GPUs of a task": (
        f"#SBATCH --ntasks=3\n#SBATCH --gpus-per-task=2\nsrun python {MEGATRON}",
        6,
    ),
    "options of the step go first": (
        f"#SBATCH --nodes=8 --gpus-per-node=8\nsrun -N 2 --ntasks-per-node=8 python {MEGATRON}",
        16,
    ),
    "one node of torchrun": (
        f"#SBATCH --nodes=1\ntorchrun --nproc-per-node 8 {MEGATRON}",
        8,
    ),
    "variables": (f"GPUS_PER_NODE=8\nNNODES=16\npython {MEGATRON}", 128),
    "a default": (
        f"torchrun --nnodes ${{SLURM_NNODES:-2}} --nproc-per-node 4 {MEGATRON}",
        8,
    ),
    "a product": (
        ("GPUS_PER_NODE=8\nNUM_NODES=2\nWORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))\n"
        f"python {MEGATRON}"),
        16,
    ),
    "submitted with options over those of the script": (
        f"#SBATCH --nodes=2\nsbatch --nodes=4 --gpus-per-node=2 <<EOF\nsrun python {MEGATRON}\nEOF",
        8,
    ),
}  # fmt: skip


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)

    def launch(text: str) -> LaunchFile:
        Path("train.sh").write_text(f"#!/bin/bash\n{text}\n")
        return read_launch_file("train.sh")

    return launch


@pytest.mark.parametrize("name", SCRIPTS)
def test_gpus_are_those_that_a_script_gets(name: str, read) -> None:  # type: ignore[no-untyped-def]
    text, gpus = SCRIPTS[name]
    launch = read(text)
    assert launch.experiment.configuration.degrees.devices == gpus
    assert not any("GPUs" in each for each in launch.assumed)
    assert not any("nodes" in each.name for each in launch.ignored)


def test_nodes_that_only_a_run_tells_are_said(read) -> None:  # type: ignore[no-untyped-def]
    launch = read(f"torchrun --nnodes $SLURM_NNODES --nproc-per-node 4 {MEGATRON}")
    assert launch.experiment.configuration.degrees.devices == 4
    (said,) = (each for each in launch.ignored if each.name == "--nnodes")
    assert said == (
        "--nnodes",
        "$SLURM_NNODES",
        True,
        "is only known when it runs: one node is predicted",
    )


def test_variables_of_the_environment_count_in_a_command() -> None:
    launch = read_launch_file(f"SLURM_JOB_NUM_NODES=3 srun torchrun --nproc-per-node=2 {MEGATRON}")
    assert launch.experiment.configuration.degrees.devices == 6


def test_jobs_without_counts_have_none() -> None:
    assert slurm_variables(["--job-name=gpt", "--mem=0", "--partition", "train"]) == {}
    assert gpu_count(["srun", "python"], {}).gpus is None
