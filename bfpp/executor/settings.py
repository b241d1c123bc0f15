"""The choices of a run, without torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from bfpp.schedules.errors import chosen
from bfpp.schedules.settings.recomputation import (
    FULL_RECOMPUTATION,
    NO_RECOMPUTATION,
    Recomputation,
)


class BackendName(StrEnum):
    """Backends: processes over gloo or NCCL, all ranks in one process, or PyTorch's runtime."""

    CPU = "cpu"
    CUDA = "cuda"
    LOCAL = "local"
    TORCH_PIPELINING = "torch-pipelining"


class DType(StrEnum):
    """The precision of weights, activations and gradients; the optimizer's is at least single."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


PRECISIONS = {
    "fp64": DType.FLOAT64,
    "fp32": DType.FLOAT32,
    "bf16": DType.BFLOAT16,
    "fp16": DType.FLOAT16,
}
"""Short words for them."""


class Activations(StrEnum):
    """Activations kept of a forward pass: the stage's input, or all that its backward needs."""

    RECOMPUTE = "recompute"
    KEEP = "keep"


class EmbeddingStage(StrEnum):
    """Placement of embedding and head: in the first and last stages, or in stages of their own."""

    ATTACHED = "attached"
    OWN = "own"


class PretrainingObjective(StrEnum):
    """Training objective of a language model: the next byte (GPT), or masked bytes (BERT)."""

    NEXT = "next"
    MASKED = "masked"


@dataclass(frozen=True)
class LossScaling:
    """The loss is multiplied, so that small gradients are not lost in 16 bits.

    The rule is that of PyTorch's GradScaler: a step whose gradients overflow is left
    out, and the scale multiplied by `backoff`; after `interval` steps without one,
    it is multiplied by `growth`.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000


@dataclass(frozen=True)
class LearningRates:
    """Learning-rate schedule by steps: up over the `warmup`, then down until `steps`.

    The `shape` of the decay is constant, linear or cosine; `final` is the share that is left at
    its end. Or it is FILE.py:FUNCTION, of the step, for all of it.
    """

    shape: str = "constant"
    warmup: int = 0
    steps: int = 0
    final: float = 0.0


MOST_BACKOFFS = 32
"""Steps in a row that a scale may be too large for: nothing is left of 2^16 after that many."""


@dataclass(frozen=True)
class Optimization:
    """The optimizer and its settings, with gradients clipped to a norm if one is given.

    The `optimizer` is one of torch.optim by its name, or FILE.py:FUNCTION, with `arguments`;
    parameters whose names are among the patterns of `no_decay` do not decay ("vectors": norms
    and biases).
    A loss or a norm of gradients that is not finite ends the run; with
    `skip_nonfinite`, up to that many such steps in a row are left out instead, and
    with `loss_scaling` up to `MOST_BACKOFFS`.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float | None = None
    skip_nonfinite: int | None = None
    loss_scaling: LossScaling | None = None
    optimizer: str = "adamw"
    arguments: tuple[tuple[str, object], ...] = ()
    no_decay: tuple[str, ...] = ()
    rates: LearningRates = LearningRates()

    @property
    def skips(self) -> bool:
        """True if steps are skipped whose gradient norm is not finite."""
        return self.skip_nonfinite is not None or self.loss_scaling is not None

    @property
    def most_skipped(self) -> int:
        """Most steps in a row that may be skipped."""
        if self.skip_nonfinite is None:
            return MOST_BACKOFFS if self.loss_scaling else 0
        return self.skip_nonfinite

    @property
    def is_muon(self) -> bool:
        """True if matrices are updated by Muon, and all other parameters by AdamW."""
        return self.optimizer.lower() == "muon"

    @property
    def needs_norm(self) -> bool:
        """True if updates depend on the norm of all gradients."""
        return self.clip is not None or self.skips

    def for_precision(self, precision: DType) -> Optimization:
        """With loss scaling in float16, which has no room for small gradients otherwise."""
        if precision is not DType.FLOAT16 or self.loss_scaling:
            return self
        return replace(self, loss_scaling=LossScaling())


def dtype_named(name: str) -> DType:
    """The precision of a run that has that name, in short or in full."""
    return chosen(DType, "precision", PRECISIONS.get(name, name))


def kept_by(policy: Recomputation) -> dict[str, Any]:
    """The settings of a `Training` that recomputes by this policy."""
    if policy == FULL_RECOMPUTATION:
        return {"activations": Activations.RECOMPUTE, "recomputation": NO_RECOMPUTATION}
    return {"activations": Activations.KEEP, "recomputation": policy}


class Recurring:
    """Work to do after every `every` steps, and at the end."""

    every: int

    def is_due(self, done: int, steps: int) -> bool:
        """True if it is due once `done` of all `steps` are."""
        return done % self.every == 0 or done == steps


@dataclass(frozen=True)
class HeldOutEvaluation(Recurring):
    """Forward passes over held-out batches, with as many samples as `steps` of training."""

    every: int
    steps: int = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training settings, whatever the schedule and wherever it runs.

    `dp` replicas of the pipeline, in `dp_replicate` groups that shard the training state
    each; layers divided over `tp` ranks, the activations between them too if it is
    `sequence_parallel`; `microbatch_size` samples in a micro-batch; `seed` of the first
    weights and of the order of the data.
    Of a forward pass whose record is kept, the `recomputation` says what is computed again. Of
    what a graph offloads of a pass, `offload_share` of the bytes go, and the others stay.
    Gradients are added up in single precision at least; `reduce_precision` is
    what is sent of them to other replicas, by default as much. Modules whose name or
    class is one of the patterns `keeps_float32` compute in single precision at least.
    Of each rank, `loader_threads` load the next step's batch during a step. The `evaluation`
    says when the model is evaluated, if it is. With `compile`, layers and the loss are compiled.
    Stages have equally many layers, unless the `cut` says how many, or which by their names.
    """

    dp: int = 1
    dp_replicate: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    microbatch_size: int = 1
    precision: DType = DType.FLOAT32
    reduce_precision: DType | None = None
    keeps_float32: tuple[str, ...] = ()
    activations: Activations = Activations.RECOMPUTE
    recomputation: Recomputation = NO_RECOMPUTATION
    offload_share: float = 1.0
    ends: EmbeddingStage = EmbeddingStage.ATTACHED
    optimization: Optimization = field(default_factory=Optimization)
    seed: int = 0
    loader_threads: int = 0
    evaluation: HeldOutEvaluation | None = None
    compile: bool = False
    cut: str | None = None


CALIBRATION = -1
"""The number of a turn that calibrates (`bfpp.executor.measure.turns`)."""


@dataclass(frozen=True)
class Sleeps:
    """Seconds that each stage's passes take where nothing is computed.

    `factors` has how many times as long a task takes in each pipeline, by its number, where passes
    differ.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...] | None = None

    def factor(self, pipeline: int, task: int) -> float:
        """The time of a task in a pipeline, over that of its kind."""
        return 1.0 if self.factors is None else self.factors[pipeline][task]


@dataclass(frozen=True)
class Saving(Recurring):
    """Checkpoints: where, and after how many steps.

    `resumes`: go on from the last one, or from that of `step`, if it is given.
    The last `keep` stay, and those whose step is a multiple of `keep_every`. They
    are written while training goes on, from a copy, if it is `in_background`.
    """

    directory: Path
    every: int
    resumes: bool = False
    step: int | None = None
    keep: int = 2
    keep_every: int | None = None
    in_background: bool = False
