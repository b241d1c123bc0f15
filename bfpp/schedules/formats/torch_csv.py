"""Compute orders as the comma-separated actions of torch.distributed.pipelining.

One line a rank, one cell an action: stage, letter, micro-batch. `2F3` is the
forward pass of micro-batch 3 through stage 2, `2B3` its backward pass, `2I3` and
`2W3` the halves of a split backward pass (gradients of input and weights).

- Writing gives compute steps alone; torch reads them as `compute_only`.
- `(0F4;7B0)OVERLAP_F_B` is a block of two steps.
- Reading also accepts what else torch's own dumps hold: empty cells (idle
  slots), and communication actions, which follow from the orders (`read_posts` gives the
  sends and receives among them, where their order matters).
- A blank line is a rank that runs nothing, except at the end of the file. Lines that begin with
  `#` are skipped; `# key = value` is what `read_values` reads.
- Reading checks actions, not orders: see `bfpp.schedules.orders.validity` for those.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bfpp.schedules.errors import InvalidFile
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.actions import LETTERS
from bfpp.schedules.orders.posts import Post
from bfpp.schedules.orders.steps import STEP, Order, Step

_CODES = {letter: int(operation) for operation, letter in LETTERS.items()}

_COMPUTE = re.compile(r"([0-9]+)([FBIW])([0-9]+)")
_COMMUNICATION = re.compile(
    r"[0-9]{1,9}(?:UNSHARD|RESHARD|(?:WAIT_)?REDUCE_GRAD|(?:RECV|(?:WAIT_)?SEND)_[FB])[0-9]{0,9}"
)
_BLOCK = re.compile(r"\(([^;]*);([^;]*)\)OVERLAP_F_B")
_ACTION = re.compile(r"([0-9]+)(?:([FBIW])|(SEND|RECV)_([FB]))([0-9]+)")
CARRIED = {"F": (Operation.TRANSFER_ACTIVATIONS, +1), "B": (Operation.TRANSFER_GRADIENTS, -1)}
"""The transfer of each letter, and how many stages on it is received."""
_VALUE = re.compile(r"#\s*([a-z][a-z0-9_-]*)\s*=\s*(\S.*)")
_END_OF_LINE = re.compile(r"\r\n|\n|\r")

_LARGEST = np.iinfo(STEP["stage"]).max
_SHOWN = 40
"""Characters of a malformed cell that an error shows."""


class MalformedOrders(InvalidFile):
    """A text that does not hold compute orders; the reason is one line."""


def write_orders(orders: Sequence[Order]) -> str:
    """The orders as text, one line a rank; `read_orders` gives them back."""
    return "".join(",".join(_actions(order.tolist())) + "\n" for order in orders)


def _actions(steps: Iterable[Step]) -> Iterator[str]:
    """The actions of steps; the two of a block are one."""
    letters = [LETTERS[operation] for operation in sorted(LETTERS)]
    begun = ""
    for kind, stage, microbatch, fused in steps:
        action = f"{stage}{letters[kind]}{microbatch}"
        if fused:
            begun = f"({action};"
        elif begun:
            yield f"{begun}{action})OVERLAP_F_B"
            begun = ""
        else:
            yield action


def read_orders(text: str | bytes) -> list[Order]:
    """The order of each rank, from the text (or the bytes) of a file.

    Raises `MalformedOrders`, which names the line, the cell and what it holds,
    for anything but actions, and for a file without any compute step.
    """
    orders = [np.array(list(steps_of(line, number)), dtype=STEP) for number, line in ranks_of(text)]
    if not any(map(len, orders)):
        raise MalformedOrders("holds no compute step (such as 0F0 or 0B0)")
    return orders


def read_posts(text: str | bytes) -> list[list[Post]]:
    """The sends and receives of each rank, in order; actions are valid (`read_orders`)."""
    return [list(_posts(line)) for _, line in ranks_of(text)]


def _posts(line: str) -> Iterator[Post]:
    steps = 0
    for action in _ACTION.finditer(line):
        stage, letter, verb, datum, microbatch = action.groups()
        if letter:
            steps += 1
        else:
            operation, stages_on = CARRIED[datum]
            carried = int(stage) - (stages_on if verb == "RECV" else 0)
            yield Post(verb == "SEND", operation, carried, int(microbatch), steps)


def read_values(text: str | bytes) -> dict[str, str]:
    """Values of lines such as `# forward = 1.5`, as texts by name."""
    matches = (_VALUE.fullmatch(line.strip()) for line in _lines(text))
    return {match[1].replace("-", "_"): match[2] for match in matches if match}


def _lines(text: str | bytes) -> list[str]:
    return _END_OF_LINE.split(_decoded(text).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))


def ranks_of(text: str | bytes) -> Iterator[tuple[int, str]]:
    """The number and the text of each rank's line."""
    lines = _lines(text)
    while lines and (not lines[-1].strip() or _is_remark(lines[-1])):
        lines.pop()
    return ((number, line) for number, line in enumerate(lines, 1) if not _is_remark(line))


def _is_remark(line: str) -> bool:
    return line.lstrip().startswith("#")


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise MalformedOrders(f"is not text: byte {error.start} is not UTF-8") from None


def steps_of(line: str, number: int = 1) -> Iterator[Step]:
    """The compute steps of one line; raises `MalformedOrders` for a text that is no action."""
    for position, cell in enumerate(line.split(","), 1):
        action = cell.strip().removeprefix('"').removesuffix('"').strip()
        block = _BLOCK.fullmatch(action)
        for place, part in enumerate(block.groups() if block else [action]):
            if compute := _COMPUTE.fullmatch(part.strip()):
                stage, letter, microbatch = compute.groups()
                where = f"line {number}, cell {position}"
                fused = block is not None and place == 0
                yield _CODES[letter], _number(stage, where), _number(microbatch, where), fused
            elif block or (action and not _COMMUNICATION.fullmatch(action)):
                raise MalformedOrders(
                    f"line {number}, cell {position}: {_shown(action)} is not an action; "
                    "expected stage, one of F, B, I, W, and micro-batch, as in 2F0"
                )


def _number(digits: str, where: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        raise MalformedOrders(f"{where}: the number {_shown(digits)} is larger than {_LARGEST}")
    return int(digits)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def layout_of(orders: Sequence[Order]) -> Layout:
    """Ranks, stages, micro-batches and placement of orders that break no rule.

    A stage on two ranks has two copies; the first is that of its first micro-batch.
    """
    steps = np.concatenate(orders)
    rank = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
    by_microbatch = np.lexsort((rank, steps["microbatch"]))
    ranks_of = defaultdict[int, dict[int, None]](dict)
    in_order = steps["stage"][by_microbatch].tolist(), rank[by_microbatch].tolist()
    for stage, of_step in zip(*in_order, strict=True):
        ranks_of[stage][of_step] = None
    placement, *copies = zip(*(ranks_of[stage] for stage in sorted(ranks_of)), strict=True)
    microbatches = len(np.unique(steps["microbatch"]))
    return Layout(len(orders), microbatches, placement=placement, copies=copies)
