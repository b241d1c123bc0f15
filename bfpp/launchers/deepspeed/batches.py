"""The batch of DeepSpeed's JSON: of its three numbers, two give the third."""

from __future__ import annotations

from typing import NamedTuple

from bfpp.launchers.arguments import BATCH as INSTEAD
from bfpp.launchers.arguments import Arguments
from bfpp.launchers.deepspeed.settings import ACCUMULATED, BATCH, MICRO


class Batch(NamedTuple):
    """The samples of a micro-batch and of a step, and on how many replicas, if that is known."""

    micro: int
    whole: int
    replicas: int | None


def batch_of(
    given: Arguments, replicas: int | None, micro: int | None, accumulated: int | None
) -> Batch:
    """The batch, with what the program says of it, by the rules of DeepSpeed."""
    whole = given[BATCH]
    micro, accumulated = given[MICRO] or micro, given[ACCUMULATED] or accumulated
    if micro is None and whole is None:
        given.assume(f"1 sample in a micro-batch: no number is given for {MICRO}", *INSTEAD)
        micro = 1
    if replicas is None and whole and micro and accumulated:
        replicas = max(whole // (micro * accumulated), 1)
    number = replicas or 1
    micro = micro or max(whole // number // (accumulated or 1), 1)
    if accumulated is None:
        accumulated = max((whole or 0) // (micro * number), 1)
    product = micro * accumulated * number
    if whole not in (None, product):
        reason = f"{whole} is not {micro} x {accumulated} x {number} replicas"
        given.refuse(BATCH, f"{reason}: of {MICRO}, of {ACCUMULATED}, and of data parallelism")
    return Batch(micro, product, replicas)
