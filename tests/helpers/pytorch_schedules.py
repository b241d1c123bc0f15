"""Schedules of PyTorch, built without processes.

All that their orders need of a stage is a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest


class RecordingStage(SimpleNamespace):
    """A stage without a model and without peers; it records what it runs."""

    def forward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.ran.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, **_: object) -> None:
        self.ran.append(f"{self.stage_index}B{microbatch}")

    def perform_reduce_grad(self, scale: int) -> None:
        del scale

    def _nothing(self, microbatch: int) -> list[object]:
        del microbatch
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _nothing


def stage(index: int, ranks: int, stages: int) -> RecordingStage:
    nn = pytest.importorskip("torch.nn")
    return RecordingStage(
        stage_index=index,
        num_stages=stages,
        group_size=ranks,
        group_rank=0,
        is_last=index == stages - 1,
        submod=nn.Identity(),
        ran=[],
    )


def compute_words(schedule: Any) -> list[list[str]]:
    """Each rank's actions of a schedule of PyTorch, without idle slots and reductions."""
    return [
        [str(action) for action in actions if action is not None and action.is_compute_op]
        for _, actions in sorted(schedule.pipeline_order.items())
    ]


def single(pipelining: Any, name: str, ranks: int, microbatches: int) -> list[list[str]]:
    make = pipelining.get_schedule_class(name)
    return compute_words(make(stage(0, ranks, ranks), microbatches))


def looped(
    pipelining: Any, name: str, ranks: int, microbatches: int, loops: int
) -> list[list[str]]:
    make = pipelining.get_schedule_class(name)
    return staged(make, range(0, loops * ranks, ranks), ranks, microbatches)


def staged(make: Any, held: Sequence[int], ranks: int, microbatches: int) -> list[list[str]]:
    """The orders of a schedule of PyTorch whose first rank holds these stages."""
    stages = [stage(index, ranks, len(held) * ranks) for index in held]
    return compute_words(make(stages, microbatches))
