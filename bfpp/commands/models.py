"""`bfpp models`: the models that are known by name, or one of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bfpp import options as shared
from bfpp.results import print_json, print_table
from schedules import InvalidConfiguration
from sim.hugging_face import read_config
from sim.model import Transformer, load_model
from sim.preset_files import PRESETS, preset_names

COLUMNS: dict[str, Callable[[Transformer], str]] = {
    "billion": lambda model: f"{model.parameters / 1e9:,.1f}",
    "layers": lambda model: f"{model.layers:,}",
    "hidden": lambda model: f"{model.hidden:,}",
    "MLP": lambda model: f"{_mlp(model):,}",
    "heads": lambda model: f"{model.heads}/{_kv_heads(model)}",
    "tokens": lambda model: f"{model.sequence:,}",
    "words": lambda model: f"{model.vocabulary:,}",
}
"""What the table tells of a model: parameters, widths, heads, sequence, vocabulary."""

TITLE = "Models: billion parameters, heads of queries/keys, tokens of a sequence, words"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp models`."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="NAME|FILE",
        help="print this one as a model file: a preset, a TOML file, or a Hugging Face config.json "
        "(default: list the presets)",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """List the presets, or print one model."""
    if options.model is not None:
        show(options, "model", _one)
        return 0
    models = [load_model(name) for name in preset_names("model")]
    if options.json:
        print_json({"models": [_record(model) for model in models]})
    else:
        rows = [[model.name, *(tell(model) for tell in COLUMNS.values())] for model in models]
        print_table(TITLE, ["name", *COLUMNS], rows)
    return 0


def show(
    options: argparse.Namespace, field: str, one: Callable[[str], tuple[dict[str, Any], str]]
) -> None:
    """Print the preset or file that was asked for: its record, or its text."""
    try:
        record, text = one(getattr(options, field))
    except InvalidConfiguration as error:
        raise ValueError(f"NAME|FILE: {error.reason}") from None
    if options.json:
        print_json(record)
    else:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def file_text(field: str, name_or_path: str) -> str:
    """The TOML of a preset or of a file."""
    preset = PRESETS / f"{field}s" / f"{name_or_path}.toml"
    path = preset if name_or_path in preset_names(field) else Path(name_or_path)
    return path.read_text(encoding="utf-8")


def _one(name_or_path: str) -> tuple[dict[str, Any], str]:
    if not name_or_path.endswith(".json"):
        return _record(load_model(name_or_path)), file_text("model", name_or_path)
    name, sizes = read_config(name_or_path)
    model = Transformer(name, **sizes)
    lines = [f"# {name!r}, from a Hugging Face config.json."]
    return _record(model), "\n".join(lines + [f"{key} = {size}" for key, size in sizes.items()])


def _record(model: Transformer) -> dict[str, Any]:
    """Sizes, those that go without saying too, and the number of parameters."""
    sizes = {**asdict(model), "mlp": _mlp(model), "kv_heads": _kv_heads(model)}
    return {**sizes, "parameters": model.parameters}


def _mlp(model: Transformer) -> int:
    return round(model.mlp_ratio * model.hidden)


def _kv_heads(model: Transformer) -> int:
    return model.kv_heads or model.heads
