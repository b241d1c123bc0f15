"""Jobs made up for the analysis of stragglers: rows as a profiler of Megatron-LM records them.

Each rank runs its passes in the order of a schedule of ours, and waits for what it receives. Sends
and receives last from when their own end is ready; so do collectives at each of their members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bfpp.schedules import Layout, find_schedule
from bfpp.schedules.operations.operations import Operation

COLUMNS = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id", "mc",
    "gmc",
)  # fmt: skip

TRANSFER = 4e-4
FORWARD, BACKWARD = "forward", "backward"

Scale = Callable[[int, int, int, str, int], float]
"""By how much an operation of a step, replica, rank, type and micro-batch takes longer."""


@dataclass
class Job:
    """A job: sizes, and what is uneven in it."""

    dp: int = 2
    pp: int = 4
    vpp: int = 1
    microbatches: int = 4
    steps: tuple[int, ...] = (3, 4, 7)
    scale: Scale = lambda *_: 1.0
    noise: float = 0.02
    gap: float = 1e-3
    overlapped: bool = False
    seed: int = 0
    forward: float = 0.06
    random: np.random.Generator = field(init=False)

    def rows(self) -> dict[str, list[Any]]:
        """The job's table, a list a column."""
        self.random = np.random.default_rng(self.seed)
        rows = [row for step in self.steps for row in _Step(self, step).rows()]
        return {name: [row.get(name, -1) for row in rows] for name in COLUMNS}

    def seconds(self, step: int, replica: int, rank: int, kind: str, microbatch: int) -> float:
        base = {FORWARD: 1.0, BACKWARD: 2.1}.get(kind, 0.2) * self.forward / self.vpp
        drawn = self.random.lognormal(0.0, self.noise)
        return base * drawn * self.scale(step, replica, rank, kind, microbatch)

    def delay(self) -> float:
        return self.gap * self.random.random()


def _orders(job: Job) -> list[list[tuple[str, int, int]]]:
    """For each rank, its passes: type, chunk and micro-batch."""
    name = "1f1b" if job.vpp == 1 else "depth-first"
    layout = Layout(job.pp, job.microbatches, job.vpp)
    names = {Operation.FORWARD: FORWARD, Operation.BACKWARD: BACKWARD}
    return [
        [
            (names[operation], stage // job.pp, microbatch)
            for operation, stage, microbatch, _ in order.tolist()
        ]
        for order in find_schedule(name).orders(layout)
    ]


class _Step:
    def __init__(self, job: Job, step: int) -> None:
        self.job, self.step = job, step
        self.found: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        job = self.job
        gathered = self._gathers()
        ends = {
            (replica, rank): end
            for replica in range(job.dp)
            for rank, end in enumerate(self._passes(replica, gathered))
        }
        self._update(ends)
        counts: dict[tuple[int, int, str], int] = defaultdict(int)
        for row in sorted(self.found, key=lambda row: row["start_ts"]):
            key = row["dp_rank"], row["stage"], row["optype"]
            row["seq_id"] = counts[key]
            counts[key] += 1
        return self.found

    def _add(
        self, replica: int, rank: int, optype: str, start: float, end: float, **more: int
    ) -> None:
        self.found.append(
            {
                "dp_rank": replica, "stage": rank, "rank": rank * self.job.dp + replica,
                "step": self.step, "optype": optype, "start_ts": 1000.0 + 10 * self.step + start,
                "duration": end - start, **more,
            }
        )  # fmt: skip

    def _together(
        self, optype: str, starts: Mapping[tuple[int, int], float], seconds: float, **more: int
    ) -> dict[tuple[int, int], float]:
        """A collective of some workers, each from its own start."""
        scales = [self.job.scale(self.step, replica, rank, optype, -1) for replica, rank in starts]
        begin = max(starts.values())
        ends = {}
        for worker, start in starts.items():
            taken = seconds * max(scales) * self.job.random.lognormal(0.0, self.job.noise)
            ends[worker] = begin + taken
            self._add(*worker, optype, start, ends[worker], **more)
        return ends

    def _gathers(self) -> dict[tuple[int, int, int], float]:
        """By replica, rank and chunk, when its parameters are there."""
        job, gathered = self.job, {}
        for rank in range(job.pp):
            free = {(replica, rank): job.delay() for replica in range(job.dp)}
            for chunk in range(job.vpp):
                free = self._together("params-all-gather", free, 0.02 / job.vpp, mc=chunk)
                gathered |= {(*worker, chunk): end for worker, end in free.items()}
        return gathered

    def _passes(self, replica: int, gathered: Mapping[tuple[int, int, int], float]) -> list[float]:
        """Run the passes of a replica; when each rank has ended its last one."""
        job = self.job
        todo = [list(order) for order in _orders(job)]
        self.ended: dict[tuple[str, int, int], float] = {}
        free, last = [0.0] * job.pp, [dict[str, float]() for _ in range(job.pp)]
        stages = job.pp * job.vpp
        sent: dict[tuple[str, int, int], float] = {}
        posted_first = [
            max(next(at for at, each in enumerate(order) if each[0] == BACKWARD) - 2, -1)
            for order in todo
        ]
        done = [0] * job.pp
        while any(todo):
            progress = False
            for rank in range(job.pp):
                while todo[rank]:
                    kind, chunk, microbatch = todo[rank][0]
                    stage = chunk * job.pp + rank
                    source = stage + (-1 if kind == FORWARD else 1)
                    receives = 0 <= source < stages
                    made = (kind, source, microbatch)
                    if receives and made not in sent:
                        break
                    progress = True
                    todo[rank].pop(0)
                    posted = last[rank].get(kind, last[rank].get("posted", 0.0)) + 1e-5
                    ready = free[rank]
                    if receives:
                        begin = max(sent[made], posted)
                        end = begin + TRANSFER * job.random.lognormal(0.0, job.noise)
                        end = max(end, last[rank].get("received" + kind, 0.0))
                        last[rank]["received" + kind] = end
                        self._add(replica, rank, f"{kind}-recv", posted, end)
                        other = source % job.pp
                        self._add(replica, other, f"{kind}-send", sent[made], end)
                        ready = max(ready, end)
                    elif job.vpp > 1 and (kind, stage, microbatch) != (FORWARD, 0, 0):
                        self._add(replica, rank, f"{kind}-recv", posted, posted + 2e-6)
                    if kind == FORWARD:
                        ready = max(ready, gathered[replica, rank, chunk])
                    start = ready + job.delay()
                    end = start + job.seconds(self.step, replica, rank, kind, microbatch)
                    self._add(
                        replica, rank, f"{kind}-compute", start, end,
                        mb_id=microbatch, mc=chunk, gmc=stage,
                    )  # fmt: skip
                    free[rank] = last[rank][kind] = end
                    if done[rank] == posted_first[rank]:
                        last[rank]["posted"] = end
                    done[rank] += 1
                    self.ended[kind, stage, microbatch] = end
                    target = stage + (1 if kind == FORWARD else -1)
                    if 0 <= target < stages:
                        sent[kind, stage, microbatch] = end + 2e-6
                    elif job.vpp > 1:
                        self._add(replica, rank, f"{kind}-send", end, end + 2e-6)
            assert progress, "the ranks wait for each other"
        for rank in range(job.pp):
            chunks = range(job.vpp - 1, -1, -1)
            self.reducible = getattr(self, "reducible", {})
            self.reducible |= {
                (replica, rank, chunk): max(
                    end
                    for (kind, stage, _), end in self.ended.items()
                    if kind == BACKWARD and stage == chunk * job.pp + rank
                )
                for chunk in chunks
            }
        return free

    def _update(self, ends: dict[tuple[int, int], float]) -> None:
        job, workers = self.job, list(ends)
        reduced = self._reductions(self.reducible) if job.overlapped else None
        for worker in workers:
            self._add(*worker, "gc", ends[worker], ends[worker])
            start = max(ends[worker], reduced[worker] if reduced else 0.0) + job.delay()
            ends[worker] = start + 4e-5
            self._add(*worker, "layernorm-grads-all-reduce", start, ends[worker])
        for replica in range(job.dp):
            pair = {(replica, rank): ends[replica, rank] for rank in {0, job.pp - 1}}
            ends |= self._together("embedding-grads-all-reduce", pair, 0.01)
        for rank in range(job.pp):
            own = {(replica, rank): ends[replica, rank] for replica in range(job.dp)}
            if job.overlapped:
                ends |= self._together("separate-grads-all-reduce", own, 0.004)
            else:
                for chunk in range(job.vpp - 1, -1, -1):
                    own = self._together("grads-reduce-scatter", own, 0.03 / job.vpp, mc=chunk)
                ends |= own
        ends |= self._together("optimizer-clip-main-grad", ends, 0.002)
        for worker in workers:
            seconds = job.seconds(self.step, *worker, "optimizer", -1)
            self._add(*worker, "optimizer", ends[worker], ends[worker] + seconds)

    def _reductions(
        self, ready: Mapping[tuple[int, int, int], float]
    ) -> dict[tuple[int, int], float]:
        """Reductions that overlap passes, the last chunk first."""
        job, free = self.job, dict[tuple[int, int], float]()
        for rank in range(job.pp):
            for chunk in range(job.vpp - 1, -1, -1):
                own = {
                    (replica, rank): max(
                        ready[replica, rank, chunk] + 1e-5, free.get((replica, rank), 0.0)
                    )
                    for replica in range(job.dp)
                }
                free |= self._together("grads-reduce-scatter", own, 0.03 / job.vpp, mc=chunk)
        return free
