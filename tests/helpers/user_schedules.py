"""Python files of users, with schedules of their own, and a search for them."""

from __future__ import annotations

SEARCH = "search --model bert-6.6b --cluster dgx1-v100 --gpus 4 --batch 8 --workers 1 --fix pp=2"

OWN = """
from bfpp import Schedule
from bfpp.schedules.orders.steps import backward, forward


class Mine(Schedule):
    name = "mine"
    first: int = 0

    def steps(self, layout, rank):
        for microbatch in range(layout.microbatches):
            yield forward(rank, microbatch)
            if microbatch >= self.first:
                yield backward(rank, microbatch)
"""

MANY = """
from dataclasses import dataclass

from bfpp.schedules.families.gpipe import GPipe


@dataclass(frozen=True)
class Many(GPipe):
    name = "many"
    whole: int = 4
    least: int | None = None
    share: float = 0.5
    kind: str = "5%"
    first: bool = True
    after: bool = False
    svg: int = 1
    sizes: tuple[int, ...] = ()


few = Many(whole=2, share=-1.0, after=True)
"""
