"""Numbers of GPUs: by options of launchers, and by variables, such as those that Slurm sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

NODES = ("--nnodes", "--nodes", "-N", "--num-nodes")
OF_NODE = (
    "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node", "--gres", "--num-gpus", "--npernode"
)  # fmt: skip
PROCESSES = ("--ntasks", "-n", "-np", "--np")
"""Options of torchrun, srun, mpirun and DeepSpeed, with `_` as `-`."""

SLURM = {
    ("--nodes", "-N"): ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    ("--gpus-per-node", "--gres"): ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    ("--ntasks-per-node",): ("SLURM_NTASKS_PER_NODE",),
    ("--ntasks", "-n"): ("SLURM_NTASKS", "SLURM_NPROCS"),
    ("--gpus-per-task",): ("SLURM_GPUS_PER_TASK",),
    ("--gpus", "-G"): ("SLURM_GPUS",),
}
"""Variables that Slurm sets, by the options of sbatch that decide them."""

NODE_COUNT = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES", "NUM_NODES")
GPUS_OF_NODE = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "GPUS_PER_NODE", "NPROC_PER_NODE")
TASKS_OF_NODE = ("SLURM_NTASKS_PER_NODE",)
TASKS = ("SLURM_NTASKS",)

PRODUCTS = (
    (("WORLD_SIZE",),),
    (("NGPU",),),
    (("SLURM_GPUS",),),
    (GPUS_OF_NODE, NODE_COUNT),
    (("SLURM_GPUS_PER_TASK",), TASKS),
    (TASKS_OF_NODE, NODE_COUNT),
    (TASKS,),
    (GPUS_OF_NODE,),
    (TASKS_OF_NODE,),
)
"""Variables whose values' product is the number of GPUs; the first of which all are known counts.

A factor is the first known of several variables.
"""

INCLUDED, OF_INCLUDED = "--include", re.compile(r"[^:@]+:([0-9]+(?:,[0-9]+)*)")
"""The option of DeepSpeed's launcher that lists devices, host by host, and one host with them."""

INHERITS = "srun"
"""The launcher that starts as many processes as its job has, unless it is said."""

_BATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_LAST_NUMBER = re.compile(r"(?:.*[:=])?([0-9]{1,6})")


class GpuCount(NamedTuple):
    """The number of GPUs, if it is known, and an option whose number of nodes is not."""

    gpus: int | None
    unknown: tuple[str, str] | None = None


def gpu_count(words: Sequence[str], environment: Mapping[str, str]) -> GpuCount:
    """The number of processes that a launcher starts, by its options, or by variables."""
    said = dict(_options(words))
    nodes, of_node, all_ = (
        next(((name, said[name]) for name in names if name in said), None)
        for names in (NODES, OF_NODE, PROCESSES)
    )
    if included := _included(said.get(INCLUDED, "")):
        return GpuCount(included)
    number = _number(nodes[1]) if nodes else None
    job = _factor(NODE_COUNT, environment)
    if number is None and (nodes or INHERITS in words[:1]):
        number = job
    if of_node and (each := _number(of_node[1]) or _factor(GPUS_OF_NODE, environment)):
        return GpuCount(each * (number or 1), nodes if number is None else None)
    if all_ and (count := _number(all_[1])):
        return GpuCount(count)
    for factors in PRODUCTS:
        known = [_factor(names, environment) for names in factors]
        if None not in known:
            return GpuCount(prod(each or 0 for each in known))
    return GpuCount(None)


def _included(hosts: str) -> int | None:
    """The devices that are listed, as `localhost:0,1@other:0,1`; None if some host has no list."""
    lists = [OF_INCLUDED.fullmatch(host) for host in hosts.split("@")]
    return sum(len(each[1].split(",")) for each in lists if each) if all(lists) else None


def batch_words(script: str) -> list[str]:
    """The options of sbatch in a script."""
    return [word for line in _BATCH.findall(script) for word in line.split()]


def slurm_variables(options: Sequence[str]) -> dict[str, str]:
    """The variables of a job with these options of sbatch."""
    said = dict(_options(options))
    return {
        variable: str(number)
        for names, variables in SLURM.items()
        for name in names
        if (number := _number(said.get(name, "")))
        for variable in variables
    }


def _factor(names: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """The value of the first variable that has a number."""
    numbers = (_number(environment.get(name, "")) for name in names)
    return next((number for number in numbers if number), None)


def _number(text: str) -> int | None:
    """A number, or the one that a text ends with (`1:4`, `gpu:8`)."""
    match = _LAST_NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options by name, each with the word or the text after it."""
    for word, after in pairwise([*words, ""]):
        name, mark, value = word.partition("=")
        if name.startswith("-"):
            yield name.replace("_", "-"), value if mark else after
