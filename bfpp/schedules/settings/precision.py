"""The precision in which a model is trained."""

from __future__ import annotations

from enum import StrEnum

from bfpp.schedules.errors import InvalidConfiguration, did_you_mean

FIELD = "precision"

HALF_PRECISION = 2
"""Bytes of a half-precision number."""

FULL_PRECISION = 4
"""Bytes of a full-precision number."""


class Precision(StrEnum):
    """The precision of weights and activations; the optimizer's is at least full.

    The last five are bfloat16 with narrow operands of GEMMs, by the recipes of Transformer
    Engine: FP8 with one scale a tensor, of the steps before (`delayed`) or its own (`current`), or
    one a block; MXFP8 and NVFP4.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"
    FP8_DELAYED = "fp8-delayed"
    FP8_CURRENT = "fp8-current"
    FP8_BLOCK = "fp8-block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def bytes(self) -> int:
        """Bytes of a number, but of operands that are quantised."""
        return _BYTES.get(self, HALF_PRECISION)

    @property
    def is_mixed(self) -> bool:
        """True if the optimizer keeps a copy of the weights in full precision."""
        return self.bytes < FULL_PRECISION


class Format(StrEnum):
    """Formats of quantised GEMM operands: scaled by tensor, or by block."""

    FP8 = "fp8"
    FP8_BLOCK = "fp8-block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


_BYTES = {Precision.FP32: 4, Precision.FP64: 8}

ALIASES = {
    "bfloat16": Precision.BF16,
    "float16": Precision.FP16,
    "float32": Precision.FP32,
    "float64": Precision.FP64,
    "fp8": Precision.FP8_DELAYED,
}
"""PyTorch's names, and Megatron-LM's meaning of `--fp8-format` alone."""


def parse_precision(text: str) -> Precision:
    """The precision of that name; raises `InvalidConfiguration` for another."""
    known = {**{str(each): each for each in Precision}, **ALIASES}
    if text not in known:
        raise InvalidConfiguration(
            FIELD, f"{text!r} is not one of {', '.join(Precision)}{did_you_mean(text, known)}"
        )
    return known[text]
