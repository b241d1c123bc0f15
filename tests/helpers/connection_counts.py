"""Connections that gloo has in a process of a run, once each has told all others something."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from bfpp.executor.processes import ProcessContext, join
from bfpp.executor.processes.butterfly import merged_over_all
from bfpp.executor.processes.launcher import process_context


def connections(context: ProcessContext, meshed: int) -> tuple[list[int], float]:
    """By process, the sockets that joining and one exchange opened, and what all came to."""
    process_context.MESHED = meshed
    before = _sockets()
    join(context)
    merged = merged_over_all(torch.tensor([float(context.process)]), torch.add)
    opened = torch.tensor([_sockets() - before])
    counts = [torch.zeros_like(opened) for _ in range(context.processes)]
    dist.all_gather(counts, opened)
    return [int(each) for each in counts], float(merged)


def _sockets() -> int:
    return sum(each.is_socket() for each in Path("/proc/self/fd").iterdir())
