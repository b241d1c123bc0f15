"""`bfpp export`: a checkpoint of `bfpp run` as transformers or torchtitan read it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bfpp.api.running.jobs import require_torch
from bfpp.executor.settings import PRECISIONS, DType
from bfpp.launchers.own.model import require_safetensors, transformer_source
from bfpp.launchers.releases import release_number
from bfpp.options import shared
from bfpp.options.running.run import add_choice
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.reading import parsed, read_file
from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import load_model
from bfpp.terminal.error_lines import blaming, refusing
from bfpp.terminal.formats import (
    CONFIG,
    DISTRIBUTED,
    DISTRIBUTED_MARK,
    METADATA,
    SAFETENSORS,
)
from bfpp.terminal.number_types import whole_number
from bfpp.terminal.outputs import Output, add_force_argument, add_output_folder
from bfpp.terminal.printing import print_json, print_table

if TYPE_CHECKING:
    from bfpp.executor.model.transformer.stored_weights import ExportedWeights
    from bfpp.executor.model.transformer.transformer import TransformerSizes


CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
METADATA_FILE, DATA_FILE = ".metadata", "__0_0.distcp"

HUGGING_FACE, TORCHTITAN = NAMES = ("hf", "torchtitan")
"""Whose names weights may have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp export`."""
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="directory of bfpp run --checkpoint, or one checkpoint in it, of a model that is laid "
        "out as a Llama, Mistral or Qwen (bfpp run --model config.json)",
    )
    parser.add_argument(
        "--step",
        type=whole_number,
        metavar="N",
        help="step of the checkpoint (default: the last)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="config.json that the model was trained from: its other entries, such as special "
        "tokens, are copied (default: only what the checkpoint knows of the model)",
    )
    group = parser.add_argument_group("output")
    add_output_folder(
        group,
        "--out",
        None,
        f"write {CONFIG_FILE} and {WEIGHTS_FILE}, or for torchtitan a checkpoint of "
        "torch.distributed.checkpoint",
        required=True,
    )
    group.add_argument(
        "--names",
        choices=NAMES,
        default=HUGGING_FACE,
        help="whose names the weights have: Hugging Face's, or torchtitan's, whose Llama 3 has "
        f"rows of queries and keys in another order, too (default: {HUGGING_FACE})",
    )
    group.add_argument(
        "--release",
        type=release_number,
        metavar="X.Y",
        help="names of this release of torchtitan (default: the newest that is known)",
    )
    add_choice(
        group,
        "--precision",
        kind=DType,
        default=DType.FLOAT32,
        purpose="precision of the weights in the file",
        words=PRECISIONS,
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Check that the checkpoint can be one of theirs, and write it."""
    files = _files(options)
    require_torch()
    from bfpp.executor.checkpoint import CheckpointError, read_manifest
    from bfpp.executor.model.sources import described_sizes
    from bfpp.executor.run.history import LAST

    precision = DType(options.precision)
    with blaming("CHECKPOINT"), refusing("file", CheckpointError):
        checkpoint = _chosen(options.checkpoint, options.step)
        manifest = read_manifest(checkpoint)
    with _refused("CHECKPOINT: its model "):
        sizes = described_sizes(manifest.settings.get(LAST, {}))
    export, config = _theirs(options, checkpoint, sizes)
    with blaming("CHECKPOINT"), refusing("file", CheckpointError):
        export.require_sound()
    record = {
        "checkpoint": str(checkpoint),
        "step": manifest.step,
        "model_type": config["model_type"],
        "precision": str(precision),
        "tensors": len(export.shapes),
        "parameters": sum(shape.numel() for shape in export.shapes.values()),
        "files": [str(each.path) for each in files],
    }
    if options.json:
        print_json(record)
    else:
        _print(record)
    if options.names == TORCHTITAN:
        _write_folder(export, *files)
        return 0
    config_file, weights_file = files
    with weights_file.written() as path:
        export.write(path)
    with config_file.written() as path:
        content = {"exported_by": "bfpp", **config, "dtype": str(precision)}
        path.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def _files(options: argparse.Namespace) -> tuple[Output, Output]:
    """The files that are written, which may be: what describes the weights, and these."""
    is_torchtitan = options.names == TORCHTITAN
    if options.release and not is_torchtitan:
        raise InvalidConfiguration("release", f"is for --names {TORCHTITAN}")
    if options.config and is_torchtitan:
        raise InvalidConfiguration("config", f"is copied for --names {HUGGING_FACE}")
    names = (
        ((METADATA_FILE, METADATA), (DATA_FILE, DISTRIBUTED))
        if is_torchtitan
        else ((CONFIG_FILE, CONFIG), (WEIGHTS_FILE, SAFETENSORS))
    )
    first, second = (options.out.inside(*each) for each in names)
    with blaming("--out"):
        first.require_ours(options.force)
        second.require_ours(options.force)
    return first, second


def _theirs(
    options: argparse.Namespace, checkpoint: Path, sizes: TransformerSizes
) -> tuple[ExportedWeights, dict[str, Any]]:
    """The weights under their names, and the model's details."""
    from bfpp.executor.plan.plan import DTYPES

    dtype = DTYPES[DType(options.precision)]
    if options.names == TORCHTITAN:
        from bfpp.executor.model.transformer import torchtitan

        with _refused("CHECKPOINT: its weights "):
            torchtitan.require_model(sizes)
        form = torchtitan.form_for(options.release)
        kind = "qwen3" if sizes.norms_queries else "llama3"
        return torchtitan.TorchtitanExport(checkpoint, sizes, dtype, form), {"model_type": kind}
    require_safetensors()
    from bfpp.executor.model.transformer.hugging_face import WeightExport
    from bfpp.executor.model.transformer.hugging_face_config import config_of

    with _refused("CHECKPOINT: its model "):
        config = config_of(sizes)
    if options.config:
        with blaming("--config"), _refused("--config: "):
            config = _given(options.config, sizes)
    return WeightExport(checkpoint, sizes, dtype), config


def _write_folder(export: ExportedWeights, metadata: Output, data: Output) -> None:
    """Write a checkpoint of torch.distributed.checkpoint; what says where all lies comes last."""
    with (
        metadata.written() as last,
        data.written() as first,
        TemporaryDirectory(dir=data.place.parent, prefix=".bfpp-") as folder,
    ):
        export.write(Path(folder))
        for name, place in ((DATA_FILE, first), (METADATA_FILE, last)):
            with Path(folder, name).open("ab") as file:
                file.write(DISTRIBUTED_MARK)
            Path(folder, name).replace(place)


def _chosen(path: Path, step: int | None) -> Path:
    """The checkpoint that is named, or in a directory of several the one of a step.

    Raises `CheckpointError` where there is none.
    """
    from bfpp.executor.checkpoint import CheckpointError, start_of
    from bfpp.executor.checkpoint.manifest import MANIFEST

    path.stat()  # what is not there is said to be so
    if (path / MANIFEST).exists():
        if step is not None:
            raise CheckpointError(f"{path} is one checkpoint; --step is for a directory of several")
        return path
    start = start_of(path, step)
    if start is None:
        raise CheckpointError(f"{path} is no checkpoint of bfpp run, and has none in it")
    return start.path


def _given(file: Path, sizes: TransformerSizes) -> dict[str, Any]:
    """The details of a `config.json`; raises `InvalidConfiguration` for that of another model."""
    model = load_model(str(file))
    if not is_config(file):
        raise InvalidConfiguration("config", f"{file} is no config.json")
    other = transformer_source(model, None, is_causal=model.causal, file=str(file)).sizes
    for name, size in vars(replace(other, context=sizes.context)).items():
        if size != (own := getattr(sizes, name)):
            raise InvalidConfiguration(
                "config",
                f"{file} is the config of another model: {name} {size}, and the checkpoint has "
                f"{own}",
            )
    config: dict[str, Any] = parsed(read_file(file))
    return config


@contextmanager
def _refused(beginning: str) -> Iterator[None]:
    """Begins the line that says why a model is refused."""
    try:
        yield
    except InvalidConfiguration as error:
        raise InvalidInput(f"{beginning}{error.reason}") from None


def _print(record: Mapping[str, Any]) -> None:
    rows = [
        ("step", f"{record['step']:,}"),
        ("model", record["model_type"]),
        ("parameters", f"{record['parameters']:,}"),
        ("precision", record["precision"]),
    ]
    print_table(record["checkpoint"], ("", ""), rows)
