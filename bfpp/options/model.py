"""The model, its sequence length, and the defaults for omissions of a `config.json`.

A model file says how long the sequences are that are trained with; a Hugging Face
`config.json` says only how long they may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import Transformer, load_model
from bfpp.terminal.number_types import whole_number
from bfpp.terminal.printing import note


def add_model_argument(group: argparse._ActionsContainer, *, required: bool = False) -> None:
    """The transformer and its sequence length."""
    group.add_argument(
        "--model",
        required=required,
        metavar="NAME|FILE",
        help="a preset, a TOML file, or a Hugging Face config.json",
    )
    group.add_argument(
        "--seq-length",
        type=whole_number,
        metavar="N",
        help="tokens per sequence (default: the model's; a config.json only says the maximum)",
    )


def model_of(options: argparse.Namespace) -> Transformer:
    """The model that is named, with sequences of the length that is given."""
    model = load_model(options.model)
    return replace(model, sequence=options.seq_length) if options.seq_length else model


def assumptions(options: argparse.Namespace) -> list[str]:
    """Values assumed since neither an option nor a file gives them; also printed to stderr."""
    given = options.seq_length if "seq_length" in options else options.context
    if not is_config(options.model or "") or given:
        return []
    assumed = (
        f"--seq-length {load_model(options.model).sequence}: the longest that {options.model} "
        "allows; it does not say what is trained with"
    )
    note(f"bfpp {options.command}: assumed {assumed}")
    return [assumed]


def with_assumptions(record: dict[str, Any], assumed: Sequence[str]) -> dict[str, Any]:
    """The record, and its assumptions, if there are any."""
    return {"assumed": list(assumed), **record} if assumed else record
