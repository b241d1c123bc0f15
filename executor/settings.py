"""The choices of a run, without torch: what the command line offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class BackendName(StrEnum):
    """How ranks run: processes over gloo or NCCL, all in one process, or by PyTorch's runtime."""

    CPU = "cpu"
    CUDA = "cuda"
    LOCAL = "local"
    TORCH_PIPELINING = "torch-pipelining"


class Precision(StrEnum):
    """The precision of weights, activations and gradients; the optimizer's is at least single."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Activations(StrEnum):
    """What is kept of a forward pass: the stage's input, or all that its backward pass needs."""

    RECOMPUTE = "recompute"
    KEEP = "keep"


class Ends(StrEnum):
    """Where the attached layers go: to the first and last stages, or to stages of their own."""

    ATTACHED = "attached"
    OWN = "own"


class Objective(StrEnum):
    """What a language model learns: the next byte (GPT), or those that are masked (BERT)."""

    NEXT = "next"
    MASKED = "masked"


@dataclass(frozen=True)
class Optimization:
    """How weights are updated: AdamW, with gradients clipped to a norm if one is given.

    A loss or a norm of gradients that is not finite ends the run; with
    `skip_nonfinite`, up to so many such steps in a row are left out instead.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float | None = None
    skip_nonfinite: int | None = None

    @property
    def needs_norm(self) -> bool:
        """Whether weights are updated by what the norm of all gradients is."""
        return self.clip is not None or self.skip_nonfinite is not None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained, whatever the schedule and wherever it runs.

    `dp` replicas of the pipeline, in `dp_replicate` groups that shard the training state
    each; `microbatch_size` samples in a micro-batch; `seed` of the first weights and of
    the order of the data. Gradients are added up in single precision at least;
    `reduce_precision` is what is sent of them to other replicas, by default as much.
    """

    dp: int = 1
    dp_replicate: int = 1
    microbatch_size: int = 1
    precision: Precision = Precision.FLOAT32
    reduce_precision: Precision | None = None
    activations: Activations = Activations.RECOMPUTE
    ends: Ends = Ends.ATTACHED
    optimization: Optimization = field(default_factory=Optimization)
    seed: int = 0


@dataclass(frozen=True)
class Sleeps:
    """Seconds that each stage's passes take where nothing is computed."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]


@dataclass(frozen=True)
class Saving:
    """Checkpoints: where, and after how many steps.

    `resumes`: go on from the last one, or from that of `step`, if it is given.
    The last `keep` stay, and those whose step is a multiple of `keep_every`.
    """

    directory: Path
    every: int
    resumes: bool = False
    step: int | None = None
    keep: int = 2
    keep_every: int | None = None
