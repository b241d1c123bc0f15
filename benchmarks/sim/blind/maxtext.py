"""MaxText's table of TPU v5e: configurations of its models on 1 to 16 slices, and results.

AI-Hypercomputer/maxtext, README.md at 9bc243c (2023-10-27). Sizes of the models follow from their
scale as in its MaxText/pyconfig.py, batch and groups from MaxText/configs/largest_job/*.sh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.sim.blind.readmes import tables

SOURCE = "maxtext"
SEQUENCE, VOCABULARY, HEAD = 2048, 32_768, 256
SLICE = 256
CHIPS = re.compile(r"(\d+)x v5e-256")


@dataclass(frozen=True)
class Model:
    """A model and how it is trained on a slice: GEMMs of attention and of an ungated MLP, tied."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    batch: int
    """Samples of a chip."""

    tp: int = 1

    @property
    def text(self) -> str:
        return (
            f"layers={self.layers},hidden={self.hidden},heads={self.heads},head_dim={HEAD},"
            f"mlp={self.mlp},sequence={SEQUENCE},vocabulary={VOCABULARY}"
        )

    @property
    def operations(self) -> float:
        """FLOPs of a chip's step as MaxText counts them: without recomputation."""
        layer = self.hidden * (4 * self.heads * HEAD + 2 * self.mlp)
        parameters = self.layers * layer + VOCABULARY * self.hidden
        attention = 12 * self.heads * self.layers * HEAD * SEQUENCE**2
        return self.batch * (6 * parameters * SEQUENCE + attention)


MODELS: Mapping[str, Model] = {
    "16b": Model(32, 5120, 32, 32_768, 6),
    "32b": Model(32, 10_240, 32, 32_768, 4),
    "64b": Model(64, 10_240, 32, 32_768, 2),
    "128b": Model(64, 10_240, 64, 65_536, 1, tp=16),
}
"""In the order of the page's tables."""


def _rows(text: str) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Size of the model, slices and the row, of each row of the page on TPU v5e."""
    pages = [rows for heading, rows in tables(text) if heading.endswith("> TPU v5e")]
    for size, rows in zip(MODELS, pages, strict=True):
        for row in rows:
            if match := CHIPS.fullmatch(row["Hardware"]):
                yield size, int(match[1]), row


def configurations(text: str) -> Iterator[dict[str, Any]]:
    for size, slices, _ in _rows(text):
        model = MODELS[size]
        values = {
            "run": f"{SOURCE}/{size}/{slices}",
            "model": model.text,
            "cluster": "tpu-v5e",
            "implementation": "current",
            "schedule": "1f1b",
            "pp": 1,
            "tp": model.tp,
            "dp": slices * SLICE // model.tp,
            "dp_replicate": slices,
            "microbatch_size": model.batch * model.tp,
            "microbatches": 1,
            "sharding": "fsdp",
            "precision": "bf16",
            "recompute": "full",
        }
        yield values


def results(text: str) -> Iterator[tuple[str, float]]:
    """Seconds of a step by run, of the rate that the page has."""
    for size, slices, row in _rows(text):
        (rate,) = (cell for name, cell in row.items() if "TFLOP" in name)
        yield f"{SOURCE}/{size}/{slices}", MODELS[size].operations / (1e12 * float(rate))
