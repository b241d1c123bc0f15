"""NCCL's communicators: one bootstrap, splits that all take part in, limits and priorities."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from bfpp.executor.dispatch.backends.groups import ProcessGroups
from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import Purpose, memberships
from bfpp.schedules import Communication, Sharding, build_graph, find_schedule
from tests.helpers.small_models import tied_chain
from tests.helpers.training_runs import plan_of

GPU = torch.device("cuda", 3)
NO_COLOR = -1


class Options(SimpleNamespace):
    """The options that torch's NCCL groups have, where torch was built without NCCL."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__(
            is_high_priority_stream=is_high_priority_stream,
            config=SimpleNamespace(max_ctas=None),
            split_from=None,
            split_color=None,
        )


class Everyone:
    """The backend of all processes, which notes who takes part in a split without a colour."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def perform_nocolor_split(self, device: torch.device) -> None:
        self.log.append((device, NO_COLOR))


class Made:
    """A group, of which its backend is known."""

    def __init__(self, backend: Everyone) -> None:
        self.backend = backend

    def _get_backend(self, device: torch.device) -> Everyone:
        assert device == GPU
        return self.backend


@contextmanager
def process(rank: int, processes: int) -> Iterator[list[Any]]:
    """A process among others that are not there; yields what it makes of groups, in order."""
    log: list[Any] = []

    def helper(size: int, number: int, ranks: list[int], kind: str, *_: Any, **how: Any) -> Any:
        assert (size, ranks[number], kind) == (len(ranks), rank, "nccl")
        log.append((ranks, how))
        return Made(everyone), None

    everyone = Everyone(log)
    dist.init_process_group("fake", rank=rank, world_size=processes, store=FakeStore())
    nccl = SimpleNamespace(Options=Options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed_c10d, "_new_process_group_helper", helper)
        patch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
        patch.setattr(dist, "broadcast_object_list", lambda _: None)
        try:
            yield log
        finally:
            dist.destroy_process_group()


def plan() -> Plan:
    schedule = find_schedule("1f1b")
    communication = Communication(Sharding.FULL, clipping=True, tied_embeddings=True)
    graph = build_graph(schedule, schedule.layout(4, 8), communication)
    return plan_of(graph, tied_chain(graph.layout.units), 2)


def test_communicators_are_splits_of_one() -> None:
    of, processes = plan(), 8
    splits = []
    for each in range(processes):
        rounds = memberships(of, *divmod(each, of.pipelines))
        with process(each, processes) as log:
            groups = ProcessGroups("nccl", timedelta(seconds=9), GPU)
            made = groups.make_rounds(rounds)
        (ranks, how), *parts = log
        assert ranks == [*range(processes)]
        assert how["backend_options"].split_from is None  # the only one with a bootstrap
        assert made[Purpose.NORMS] is made[Purpose.DATA]
        own = iter(filter(None, rounds))
        colors = []
        for members, part in parts:
            if part == NO_COLOR:
                assert members == GPU
                colors.append(NO_COLOR)
                continue
            options, membership = part["backend_options"], next(own)
            assert members == list(membership.members)
            assert isinstance(options.split_from, Everyone)
            assert options.is_high_priority_stream
            assert options.config.max_ctas == membership.max_ctas
            assert part["device_id"] == GPU  # connected at once
            assert part["timeout"] == options._timeout == timedelta(seconds=9)
            colors.append(options.split_color)
        splits.append(colors)
    for number, colors in enumerate(zip(*splits, strict=True)):  # all call each split
        for each, color in enumerate(colors):
            group = memberships(of, *divmod(each, of.pipelines))[number]
            alike = [other for other, its in enumerate(colors) if its == color]
            assert color == NO_COLOR or tuple(alike) == (group and tuple(sorted(group.members)))
