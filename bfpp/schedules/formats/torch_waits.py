"""Waits among the actions of PyTorch's pipeline runtime, which release 2.15 and later want.

`1WAIT_SEND_F3` ends the send of that output, after the backward pass that shows that it was
received; other sends wait at the end of the step. `1WAIT_REDUCE_GRAD` ends a stage's reduction: at
once where reductions block compute, else before the rank's next one, or at the end of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bfpp.schedules.orders.validity import OrderViolation

SINCE = (2, 15)
"""The first release of PyTorch that has them."""

RULE = "waits"

_BEGUN = re.compile(r"([0-9]+)(?:([BI])|(WAIT_)?(SEND_[FB]|REDUCE_GRAD))([0-9]*)")
"""A backward pass, or what is begun or waited for."""


def with_waits(row: Sequence[str], *, overlaps: bool) -> Iterator[str]:
    """The actions of a rank with a wait for whatever they begin.

    Where reductions overlap compute, they are waited for as late as can be.
    """
    sends: dict[str, str] = {}
    reduced: list[str] = []
    for action in row:
        parts = list(_BEGUN.finditer(action))
        if overlaps and any(part[4] == "REDUCE_GRAD" for part in parts):
            yield from reduced
            reduced.clear()
        yield action
        for stage, is_pass, _, kind, microbatch in (part.groups() for part in parts):
            if is_pass and (wait := sends.pop(f"{stage}SEND_F{microbatch}", None)):
                yield wait
            elif kind == "REDUCE_GRAD":
                reduced.append(f"{stage}WAIT_{kind}")
            elif kind:
                sends[action] = f"{stage}WAIT_{kind}{microbatch}"
        if not overlaps:
            yield from reduced
            reduced.clear()
    yield from reduced
    yield from sends.values()


def has_waits(rows: Sequence[str]) -> bool | None:
    """True for actions of today's release, False for older ones; None for neither's, of compute."""
    kinds = {bool(begun[3]) for row in rows for begun in _BEGUN.finditer(row) if begun[4]}
    return any(kinds) if kinds else None


def wait_violations(rows: Sequence[str]) -> Iterator[OrderViolation]:
    """Sends and reductions that are not waited for once, after they begin, where waits are said."""
    for rank, row in enumerate(rows):
        begun: dict[str, None] = {}
        for stage, is_pass, wait, kind, microbatch in _BEGUN.findall(row):
            if is_pass:
                continue
            name = f"{stage}{kind}{microbatch}"
            if not wait:
                yield from _second(rank, kind, name, begun)
                begun[name] = None
            elif name in begun:
                del begun[name]
            else:
                message = f"{stage}WAIT_{kind}{microbatch} on rank {rank} waits for nothing"
                yield OrderViolation(RULE, message)
        for name in begun:
            yield OrderViolation(RULE, f"{name} on rank {rank} is not waited for")


def _second(rank: int, kind: str, name: str, begun: dict[str, None]) -> Iterator[OrderViolation]:
    """A reduction before the end of another one, of which a rank has one at a time."""
    for other in begun:
        if kind == "REDUCE_GRAD" and other.endswith(kind):
            message = f"{name} on rank {rank} begins before {other} is waited for"
            yield OrderViolation(RULE, message)
