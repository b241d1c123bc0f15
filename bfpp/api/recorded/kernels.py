"""Traces of any ranks explained from their kernels, and as a pipeline where they are one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.api.explanation import Explanation
from bfpp.api.saved import SavedTimeline
from bfpp.schedules import InvalidInput
from bfpp.schedules.reading import read_file
from bfpp.terminal.error_lines import blaming
from bfpp.traces.explain.looks import Share
from bfpp.traces.formats.chakra import is_chakra
from bfpp.traces.formats.chakra_nodes import ChakraNode, read_nodes
from bfpp.traces.formats.perfetto_reading import is_ours
from bfpp.traces.formats.text_files import parsed_trace
from bfpp.traces.kernels.breakdown import Breakdown, Called, TimeParts
from bfpp.traces.kernels.passes import PassTimes, parts_within, pass_times
from bfpp.traces.kernels.replay import replayed_profiles
from bfpp.traces.profiles.device_profile import ActivityKind, DeviceProfile, is_fused_communication
from bfpp.traces.profiles.import_profile import import_profiles, ranks_of_step
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.profiles.kineto_activities import read_kineto_activities
from bfpp.traces.profiles.nsight import is_nsight, read_nsight
from bfpp.traces.profiles.nsight_activities import read_nsight_activities
from bfpp.traces.profiles.profile import Profile
from bfpp.traces.profiles.recognise_passes import RecognisedStep, recognise_passes

LISTED = 25
"""Kernels, collectives and copies that JSON lists, those that take longest."""

NO_DEVICE = "The file has the host alone: compute, communication, copies and idle time of devices."

ALONE = "one rank of a pipeline, alone: what it waits for is in the other ranks' traces"
SINGLE = "one rank, which neither sends to one other rank nor receives from it"
REPLICAS = "ranks that send each other no activations: replicas or shards, not stages"
REPLAYED = "the start times are replayed from durations and dependencies"
"""Why traces show no pipeline."""

_RANK = re.compile(r"(\d{1,9})\.et")

_RECEIVES = re.compile(r"(?:gloo|nccl):recv|ncclRecv|PP:\d+RECV")
_P2P = {"send", "recv"}


@dataclass(frozen=True, eq=False)
class TracedRank:
    """One process in a file: its devices, and its ranges where they are read.

    `replayed` says how start times came to be that the file does not have; None if it has them.
    """

    file: str
    breakdown: Breakdown
    profile: Profile | None
    replayed: str | None = None

    @property
    def devices(self) -> DeviceProfile:
        """Activities of its devices."""
        return self.breakdown.profile

    @property
    def is_measured(self) -> bool:
        """True where the file has anything that ran on a device."""
        return self.breakdown.whole is not None

    @cached_property
    def recognised(self) -> RecognisedStep | None:
        """The passes in all of the trace; None where there are none."""
        step = recognise_passes(self.profile) if self.profile else None
        return step if step and step.passes else None

    @cached_property
    def passes(self) -> dict[str, PassTimes] | None:
        """Passes by operation, with their compute and their holes; None if they are not known."""
        if not self.recognised or not self.is_measured:
            return None
        return pass_times(self.breakdown, self.recognised.passes, -self.devices.base) or None

    @property
    def is_linked(self) -> bool:
        """True if it sends to one other rank, or receives from it, as stages do."""
        passes = self.recognised.passes if self.recognised else ()
        named = any(it.stage is not None for it in passes)
        ranges = self.profile.annotations if self.profile else ()
        calls = {each.operation for each in self.devices.collectives}
        return named or bool(calls & _P2P) or any(_RECEIVES.match(it.name) for it in ranges)

    @property
    def fused_communication(self) -> dict[str, Called]:
        """Kernels that communicate as they compute, by name; they are part of compute."""
        names = self.breakdown.by_name(ActivityKind.COMPUTE)
        return {name: each for name, each in names.items() if is_fused_communication(name)}

    @cached_property
    def not_measured(self) -> list[str]:
        """Sentences on all that the file leaves out."""
        if not self.is_measured:
            return [NO_DEVICE]
        sentences, devices = list[str](), self.devices
        if self.replayed:
            sentences.append("Start times: they are replayed.")
        unknown = int(np.isnan(devices.launched).sum())
        if unknown:
            sentences.append(f"Launches of {unknown:,} of {len(devices):,} kernels and copies.")
        calls = self.breakdown.by_collective
        for what, field in (("process group", "group"), ("message size", "bytes")):
            without = sum(
                each.number for call, each in calls.items() if getattr(call, field) is None
            )
            if without:
                sentences.append(f"The {what} of {without:,} communication kernels.")
        if self.passes is None:
            sentences.append("Forward and backward passes: none is recognised.")
        return sentences

    def record(self) -> dict[str, Any]:
        """The rank as a JSON object; times in seconds."""
        breakdown, devices = self.breakdown, self.devices
        parts, launched = breakdown.whole, breakdown.launched_in_steps
        return {
            "file": self.file,
            "profiler": devices.source,
            "replayed": self.replayed,
            "rank": devices.rank,
            "world_size": devices.world_size,
            **_parts(parts),
            "launched_in_steps": launched and _parts(launched),
            "waiting": breakdown.waiting._asdict() if parts else None,
            "launch_delay": breakdown.delays and breakdown.delays._asdict(),
            "streams": [
                {
                    "stream": name,
                    "activities": number,
                    "busy": busy,
                    **{kind.title: seconds for kind, seconds in kinds.items()},
                }
                for name, (number, busy, kinds) in breakdown.by_stream.items()
            ],
            "groups": _groups(breakdown),
            "collectives": _collectives(breakdown),
            "kernels": _listed(breakdown.by_name(ActivityKind.COMPUTE)),
            "fused_communication": _listed(self.fused_communication),
            "copied": _listed(breakdown.by_name(ActivityKind.COPY)),
            "passes": self.passes
            and {
                name: {"passes": each.passes, **each.parts._asdict()}
                for name, each in self.passes.items()
            },
            "steps": [
                {"step": step.number, **_parts(each), "seconds": step.end - step.start}
                for step, each in breakdown.steps
            ],
            "not_measured": self.not_measured,
        }


def _parts(parts: TimeParts | None) -> dict[str, float | None]:
    return parts._asdict() if parts else dict.fromkeys(TimeParts._fields)


def _groups(breakdown: Breakdown) -> list[dict[str, Any]]:
    rows = []
    for place, called in breakdown.by_group.items():
        group = breakdown.profile.collectives[place].group
        about = (
            group._asdict() if group else dict.fromkeys(("name", "description", "size", "ranks"))
        )
        rows.append({**about, **called._asdict()})
    return rows


def _collectives(breakdown: Breakdown) -> list[dict[str, Any]]:
    return [
        {
            "group": call.group and call.group.name,
            "operation": call.operation,
            "message_bytes": call.bytes,
            **called._asdict(),
        }
        for call, called in list(breakdown.by_collective.items())[:LISTED]
    ]


def _listed(called: Mapping[str, Called]) -> list[dict[str, Any]]:
    return [{"name": name, **each._asdict()} for name, each in list(called.items())[:LISTED]]


@dataclass(frozen=True, eq=False)
class TraceExplanation:
    """Ranks of any parallelism, explained from their kernels.

    >>> import bfpp
    >>> bfpp.TraceExplanation is TraceExplanation  # bfpp.explain_traces makes one of files
    True
    """

    ranks: Sequence[TracedRank]

    @cached_property
    def _pipeline(self) -> tuple[Explanation | None, str]:
        """The ranks as one pipeline, or None and why they are none."""
        profiles = [each.profile for each in self.ranks if each.profile]
        if any(each.replayed for each in self.ranks):
            return None, REPLAYED
        if len(profiles) < len(self.ranks):
            return None, "the file does not say which ranges and which devices belong together"
        if len(profiles) == 1:
            is_linked = self.ranks[0].is_linked
            return None, ALONE if is_linked else SINGLE
        if not all(each.is_linked for each in self.ranks):
            return None, REPLICAS
        try:
            return Explanation(SavedTimeline(import_profiles(profiles))), ""
        except InvalidInput as error:
            return None, f"not one step of a pipeline: {error}"

    @property
    def pipeline(self) -> Explanation | None:
        """The last step of the ranks as one pipeline, if they are one."""
        return self._pipeline[0]

    @property
    def no_pipeline(self) -> str:
        """Why they are no pipeline; nothing if they are one."""
        return self._pipeline[1]

    @cached_property
    def within_passes(self) -> list[TimeParts] | None:
        """The parts of each rank's passes in the pipeline's step; None without devices."""
        if not self.pipeline or not all(each.is_measured for each in self.ranks):
            return None
        steps = ranks_of_step([each.profile for each in self.ranks if each.profile])
        return [
            parts_within(rank.breakdown, step.passes, -rank.devices.base)
            for rank, step in zip(self.ranks, steps, strict=True)
        ]

    @cached_property
    def shares(self) -> dict[Share, float] | None:
        """The mean rank's step in four parts, with the holes in passes where they belong."""
        if not self.pipeline:
            return None
        shares = dict(self.pipeline.causes.shares)
        if self.within_passes:
            count = len(self.within_passes)
            communication = sum(it.exposed_communication for it in self.within_passes) / count
            others = sum(it.exposed_copies + it.idle for it in self.within_passes) / count
            shares[Share.COMPUTE] = max(shares[Share.COMPUTE] - communication - others, 0.0)
            shares[Share.COMMUNICATION] += communication
            shares[Share.OTHER] += others
        return shares

    def record(self) -> dict[str, Any]:
        """The explanation as a JSON object; times in seconds."""
        pipeline = self.pipeline and {
            **self.pipeline.record(),
            "what_if": [],
            "shares": self.shares,
            "within_passes": self.within_passes and [it._asdict() for it in self.within_passes],
        }
        return {
            "traces": [each.record() for each in self.ranks],
            "pipeline": pipeline,
            "no_pipeline": self.no_pipeline or None,
        }


def load_traces(paths: Sequence[Path], option: str) -> TraceExplanation:
    """The ranks in some files; the option is named where one of them is at fault."""
    ranks = []
    nodes: dict[Path, list[ChakraNode]] = {}
    for path in paths:
        with blaming(f"{option}: {path}"):
            if is_chakra(path):
                nodes[path] = read_nodes(read_file(path))
            else:
                ranks += _read(path)
    if nodes:
        with blaming(f"{option}: {next(iter(nodes))}"):
            ranks += _replay(nodes)
    if all(each.devices.rank is not None for each in ranks):
        ranks.sort(key=lambda each: each.devices.rank or 0)
    return TraceExplanation(ranks)


def explain_traces(*paths: Path | str) -> TraceExplanation:
    """The ranks in some traces of torch.profiler or Nsight Systems, explained from their kernels.

    Of Chakra's traces, which have no start times, the replay is explained.

    Raises `InvalidInput` for a file that is no such trace.

    >>> import bfpp, json, tempfile
    >>> kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 3, "pid": 0, "tid": 7}
    >>> later = kernel | {"name": "ncclDevKernel_AllReduce", "ts": 4, "dur": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/rank0.json", "w") as file:
    ...         json.dump({"traceEvents": [kernel, later]}, file)
    ...     [rank] = bfpp.explain_traces(f"{folder}/rank0.json").ranks
    >>> [round(1e6 * each) for each in rank.breakdown.whole[:5]]  # seconds, compute, exposed, idle
    [5, 3, 1, 0, 1]
    """
    return load_traces([Path(each) for each in paths], "paths")


def _replay(nodes: Mapping[Path, Sequence[ChakraNode]]) -> list[TracedRank]:
    """The ranks of Chakra's traces, which are replayed together."""
    named = (_RANK.search(path.name) for path in nodes)
    numbers = [int(match[1]) if match else None for match in named]
    profiles, note = replayed_profiles(list(nodes.values()), numbers)
    return [
        TracedRank(path.name, Breakdown(own), None, note)
        for path, own in zip(nodes, profiles, strict=True)
    ]


def _read(path: Path) -> list[TracedRank]:
    if is_nsight(path):
        devices, ranges = read_nsight_activities(path), read_nsight(path)
        profiles: Sequence[Profile | None] = ranges
        if len(ranges) != len(devices):
            profiles = [None] * len(devices)
        return [
            TracedRank(path.name, Breakdown(own), profile)
            for own, profile in zip(devices, profiles, strict=True)
        ]
    trace = parsed_trace(read_file(path))
    if is_ours(trace):
        raise InvalidInput("is a trace of --perfetto: bfpp import makes a timeline of it")
    return [TracedRank(path.name, Breakdown(read_kineto_activities(trace)), read_kineto(trace))]
