"""Software profiles (the paper's library, Megatron-LM then and now, torchtitan) as one table.

What the hardware does is in the cluster's file. The numbers in `FITTED` come
from `bfpp fit`, as shipped in `bfpp/sim/presets/fitted.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bfpp.schedules import Communication, InvalidConfiguration, Sharding
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import FULL_PRECISION, Precision
from bfpp.schedules.settings.recomputation import (
    FULL_RECOMPUTATION,
    NO_RECOMPUTATION,
    Recomputation,
)
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import AttentionSpeed, Cluster
from bfpp.sim.engines.caching import once
from bfpp.sim.presets.files import Table, fitted_settings

FULL_STATE = 4
"""Numbers for each parameter of fully sharded training: weight, gradient and two moments."""


class ParameterBytes(NamedTuple):
    """Bytes for each parameter, in one precision; sharding divides `state`."""

    state: float
    weights: float
    gradients: float
    update: float


@dataclass(frozen=True)
class Implementation:
    """A software profile: its overlap, memory and messages.

    Bytes are for each parameter. `state_bytes` is what sharding divides;
    `update_bytes` is allocated for the optimizer step alone, on top of it.
    With `recomputes_units`, full recomputation keeps the input of a unit alone, and runs all of it
    again, its ends too.
    `buffers_stages` says that half-precision weights and gradients are kept for
    two of a rank's stages (one on a rank of one stage) instead of for all of
    them, `shards_tied_embedding` that an embedding which two pipeline ranks
    share is sharded like the rest. `optimizer_traffic` is what the update moves
    through memory, `accumulation_traffic` what it takes to add the gradients of
    one micro-batch to those before.

    `blocking_transfers` says that compute waits for transfers: all that a rank
    has at one moment are posted together, in both directions, and the step that
    needs one is longer by what it takes. `overlap_slowdown` is the share of the
    time of an overlapped transfer by which it slows the compute at its ends,
    `collective_slowdown` that of an overlapped gather or reduction.
    `step_seconds` is what each step takes on the host in addition: norms, logging, the
    next batch; `dispatch_seconds` what a rank's host takes to dispatch each of its tasks. The
    cluster's file may say both of its own host. `attention_speed` is that of its fused attention
    kernels, where they are not the best that the machine has, on the machines that they were
    written for.
    Metrics of a step move `metric_bytes` for each logit. `year` is that of its code, unless it is
    kept up to date.

    `precision`, `attention`, `sequence_parallel` and `recompute` are what
    trains if nothing else is said. `fused_kernels` says that a gated
    activation and the loss are one kernel each, `eager` that nothing else is (`Execution`),
    `cuda_graphs` that kernels are launched as a graph. `tp_overlap` says which tensor-parallel
    collectives GEMMs hide. While a layer runs backward, `hidden_gradients` gradients of the width
    of the hidden state are alive, and one of the width of the MLP's first GEMM.
    `workspace_bytes` is what libraries allocate for good, `experts_workspace_bytes` what they add
    to it for GEMMs of experts; with `dummy_gradients`, also a weight's gradient of each
    shape. `pytorch_loss` says that the loss is PyTorch's own cross-entropy, `frees_gradients` that
    fully sharded training has whole gradients in backward passes alone, and its shards of them from
    their first reduction to the update. Dropping the rows beyond an expert's capacity takes
    `dropping_seconds` for each token and expert. `narrower_state` is by how much `state_bytes`, or
    those of fully sharded training, are less where states are not in full precision, or not kept,
    and `narrower_matrices` by how much those of matrices are less than that, with Muon. Where
    replicas that share the state update whole matrices (`updates_whole_matrices`), gradients are
    reduced to these and nothing else is exchanged; else each gathers all of them.
    """

    name: str
    precision: Precision
    attention: Attention
    sequence_parallel: bool
    recompute: Recomputation
    fused_kernels: bool
    cuda_graphs: bool
    tp_overlap: TensorOverlap
    hidden_gradients: float
    workspace_bytes: float
    dummy_gradients: bool
    pp_overlap: bool
    dp_overlap: bool
    blocking_transfers: bool
    state_bytes: float
    update_bytes: float
    weight_bytes: float
    gradient_bytes: float
    buffers_stages: bool
    shards_tied_embedding: bool
    optimizer_traffic: float
    accumulation_traffic: float
    overlap_slowdown: float
    collective_slowdown: float
    step_seconds: float
    attention_speed: AttentionSpeed | None = None
    metric_bytes: float = 0.0
    experts_workspace_bytes: float = 0
    dropping_seconds: float = 0.0
    narrower_state: float = 0
    narrower_matrices: float = 0
    updates_whole_matrices: bool = True
    pytorch_loss: bool = False
    frees_gradients: bool = False
    eager: bool = False
    dispatch_seconds: float = 0.0
    recomputes_units: bool = False
    year: int | None = None

    def too_old_for(self, cluster: Cluster) -> str | None:
        """A warning where its code is not of a later year than the cluster's devices."""
        if self.year is None or cluster.year is None or self.year > cluster.year:
            return None
        return (
            f"the implementation {self.name} is software of {self.year}, no newer than the GPUs of "
            f"{cluster.name} ({cluster.year}): --implementation {cluster.implementation} is what "
            "is used there"
        )

    def communication(self, sharding: Sharding) -> Communication:
        """The operations on lanes of their own, with this sharding."""
        return Communication(sharding, self.pp_overlap, self.dp_overlap)

    @once
    def parameter_bytes(self, precision: Precision, sharding: Sharding) -> ParameterBytes:
        """Bytes kept of each parameter.

        In full precision weights and gradients are the optimizer's own, and the state is two
        moments. Fully sharded, all of it is divided, and whole layers come and go in buffers.
        """
        size = precision.bytes
        of_full = ParameterBytes(2.0 * size, size, size, 0.0)
        kept = ParameterBytes(
            self.state_bytes, self.weight_bytes, self.gradient_bytes, self.update_bytes
        )
        kept = kept if precision.is_mixed else of_full
        state = kept.state
        if sharding is Sharding.FULL:
            state = FULL_STATE * max(size, FULL_PRECISION)
        return kept._replace(state=state - self.narrower_state)


YEAR_2022: dict[str, Any] = {
    "precision": Precision.FP16,
    "attention": Attention.UNFUSED,
    "sequence_parallel": False,
    "recompute": FULL_RECOMPUTATION,
    "fused_kernels": False,
    "cuda_graphs": False,
    # Section Tensor-parallel, footnote: the backward pass's own all-reduces are overlapped, so that
    # 2/3 of all are exposed.
    "tp_overlap": TensorOverlap.BULK,
    # Assumed: of a layer's output and input, of the residual, of a branch and its norm's output.
    # (Without a pipeline, the memory in tables E.1 and E.2 grows by S_seq S_mb S_hidden times
    # 18.8 + 69 / N_TP; a layer's activations and these give 18 + 72 / N_TP.)
    "hidden_gradients": 5,
    "workspace_bytes": 0,
    "dummy_gradients": False,
    "step_seconds": 0.0,
    "year": 2022,
}
"""Common to the paper's library and Megatron-LM of its time."""

PAPER = Implementation(
    name="paper",
    **YEAR_2022,
    # Appendix Implementation, Distributed training: all of it overlapped, double-buffered.
    pp_overlap=True,
    dp_overlap=True,
    blocking_transfers=False,
    buffers_stages=True,
    # Tables E.1 and E.2: of 6.6 B over 4 x 1 ranks with partial sharding over 16, 16 bytes for all
    # 130 M parameters of the embedding are on rank 0, and for a sixteenth of the layers'.
    shards_tied_embedding=False,
    # Appendix Details: "exactly 16" bytes; weights, two moments, gradients in full precision.
    state_bytes=16,
    update_bytes=0,
    # Appendix Memory efficiency: "fp16 weight and gradient buffers".
    weight_bytes=2,
    gradient_bytes=2,
    # Assumed: Adam reads 16 bytes (state_bytes), writes 12, and 2 in half precision.
    optimizer_traffic=30,
    # Assumed: a GEMM writes it in half precision; a sum reads two, and writes one.
    accumulation_traffic=8,
    overlap_slowdown=0.16,
    # Cross-validation: gathers and reductions that slow compute, too, fit worse.
    collective_slowdown=0.0,
)

MEGATRON = Implementation(
    name="megatron",
    **YEAR_2022,
    # Section Evaluation: no data-parallel or pipeline-parallel network overlap. Transfers still
    # have lanes of their own: one rank's are under way at the same time.
    pp_overlap=True,
    dp_overlap=False,
    blocking_transfers=True,
    buffers_stages=False,
    shards_tied_embedding=True,
    # Appendix Details: "approximately 12" bytes; weights and two moments in full precision.
    state_bytes=12,
    # There, footnote: full-precision gradients "are allocated on the fly".
    update_bytes=4,
    weight_bytes=2,
    gradient_bytes=2,
    # Assumed: as above, and gradients are copied (6 bytes), unscaled (8) and normed (4).
    optimizer_traffic=48,
    accumulation_traffic=8,
    overlap_slowdown=0.0,
    collective_slowdown=0.0,
)

TODAY: dict[str, Any] = {
    "precision": Precision.BF16,
    "attention": Attention.FUSED,
    "recompute": NO_RECOMPUTATION,
    "fused_kernels": True,
    "cuda_graphs": False,
    # Without Transformer Engine's user buffers: on eight B200, nothing of it is hidden (published
    # runs of Llama-3-70B layers; counted as hidden, eight devices come out 15 % too fast).
    "tp_overlap": TensorOverlap.NONE,
    "pp_overlap": True,
    "dp_overlap": True,
    "blocking_transfers": False,
    "buffers_stages": False,
    "shards_tied_embedding": True,
    # Weights in full precision and two moments, which are divided over replicas, and weights in
    # half precision.
    "state_bytes": 12,
    "update_bytes": 0,
    "weight_bytes": 2,
    # The layer transient of published peaks on B200: one, and one of the MLP's expanded width.
    "hidden_gradients": 1,
    "overlap_slowdown": 0.0,
    # GPT and LLaMA on A100 and H100 (Lee et al., 2025, arXiv 2507.03114): compute takes 1.189 times
    # as long beside communication, and one after the other both take 1.102 times that. So what
    # communicates for 0.31 of the compute's time costs it 0.189: 0.61.
    "collective_slowdown": 0.61,
}
"""Common to Megatron-LM and PyTorch."""

CURRENT = Implementation(
    name="current",
    # Megatron-LM's defaults (2026), with Transformer Engine and its fused cross-entropy.
    **TODAY,
    sequence_parallel=True,
    # Gradients in full precision.
    gradient_bytes=4,
    # cuBLAS: 32 MiB each for PyTorch and for Transformer Engine (Hopper and later).
    workspace_bytes=2**26,
    # Assumed: as much for each of Transformer Engine's four streams of GEMMs of experts.
    experts_workspace_bytes=2**27,
    # Transformer Engine, where gradients are added up in the GEMM.
    dummy_gradients=True,
    # Assumed, bytes for each parameter: norm 4, clipping 8, Adam 34.
    optimizer_traffic=46,
    # The GEMM reads and writes gradients in full precision.
    accumulation_traffic=8,
    # Fitted to published runs on eight B200, without CUDA graphs: what a step takes, and 0.6 ms for
    # a top-k and an argsort of 4,096 tokens and 160 experts (DeepSeek-V2, expert-parallel over
    # eight).
    step_seconds=10e-3,
    dropping_seconds=9.7e-10,
)

FSDP = Implementation(
    name="fsdp",
    # PyTorch's FSDP of 2023 with FlashAttention, as in Composer and llm-foundry.
    **TODAY,
    sequence_parallel=False,
    gradient_bytes=2,
    frees_gradients=True,
    # PyTorch's for cuBLAS, before Hopper.
    workspace_bytes=2**23,
    dummy_gradients=False,
    # Assumed, bytes for each parameter: an AdamW whose every operation is a kernel of its own.
    optimizer_traffic=80,
    # Gradients are written in half precision (2), joined, as weights are views of a flat one (4),
    # and divided before they are reduced (4).
    accumulation_traffic=10,
    step_seconds=0.0,
    # The first FlashAttention on A100: 30 % to 50 % of the peak forward, 25 % to 35 % backward
    # (Dao, 2023, FlashAttention-2, introduction).
    attention_speed=AttentionSpeed(forward_efficiency=0.4, backward_efficiency=0.3),
    year=2023,
    # Composer computes cross-entropy and perplexity of each micro-batch's logits, besides the loss:
    # each converts them (2 and 4 bytes), and writes the logarithms of a softmax (4 and 4).
    metric_bytes=28,
)

TORCHTITAN = Implementation(
    name="torchtitan",
    # PyTorch since 2024: FSDP2 and tensor parallelism, with torch.compile. The loss is a kernel an
    # operation, on logits in full precision (so is the gate here, though it is compiled).
    **{**TODAY, "fused_kernels": False},
    sequence_parallel=True,
    pytorch_loss=True,
    # Its default: reduced in full precision.
    gradient_bytes=4,
    frees_gradients=True,
    # PyTorch's for cuBLAS, on Hopper.
    workspace_bytes=2**25,
    dummy_gradients=False,
    # A fused AdamW reads 16 and writes 12; the norm and clipping 12.
    optimizer_traffic=40,
    # Gradients are written in half precision (2), and converted before they are reduced (6).
    accumulation_traffic=8,
    step_seconds=0.0,
    # FlashAttention-2, which PyTorch takes by default.
    attention_speed=AttentionSpeed(),
)

BFPP = Implementation(
    name="bfpp",
    # What `bfpp run` executes: eager PyTorch, counted in its code (bfpp.executor).
    eager=True,
    **{
        **TODAY,
        "fused_kernels": False,
        # Weights and two moments in full precision; gradients are reduced where they are added up.
        "state_bytes": 12,
    },
    sequence_parallel=False,
    pytorch_loss=True,
    # Those of micro-batches are added up in full precision.
    gradient_bytes=4,
    # PyTorch's for cuBLAS, on Hopper.
    workspace_bytes=2**25,
    dummy_gradients=False,
    recomputes_units=True,
    updates_whole_matrices=False,
    # By `bfpp measure` on the host of an H100 (a Xeon, torch 2.11); of a machine, see its cluster.
    dispatch_seconds=3.1e-4,
    # PyTorch's fused AdamW reads 16 and writes 12; gradients are looked at (4) and cleared (4),
    # weights copied (6).
    optimizer_traffic=42,
    # A GEMM writes it in half precision (2); a sum reads that and the one before, and writes.
    accumulation_traffic=12,
    step_seconds=0.0,
)

BEFORE = PAPER.name
"""Implementation of files that name none: the default when these were written."""

FITTED = ("overlap_slowdown", "dropping_seconds")


def with_fitted(fitted: Mapping[str, Table]) -> dict[str, Implementation]:
    """The implementations by name, with the constants that `bfpp fit` wrote for them."""
    known = {each.name: each for each in (PAPER, MEGATRON, CURRENT, FSDP, TORCHTITAN, BFPP)}
    return {
        name: replace(each, **{key: fitted[name][key] for key in FITTED if key in fitted[name]})
        if name in fitted
        else each
        for name, each in known.items()
    }


IMPLEMENTATIONS = with_fitted(fitted_settings("implementations"))
PAPER, MEGATRON, CURRENT, FSDP, TORCHTITAN, BFPP = IMPLEMENTATIONS.values()


def find_implementation(name: str, fitted: Mapping[str, Table] | None = None) -> Implementation:
    """The implementation of that name, or `InvalidConfiguration`; with fitted constants."""
    known = IMPLEMENTATIONS if fitted is None else with_fitted(fitted)
    if name not in known:
        names, meant = ", ".join(known), did_you_mean(name, known)
        raise InvalidConfiguration("implementation", f"{name!r} is not one of {names}{meant}")
    return known[name]


CLUSTERS_OWN = replace(CURRENT, name="the cluster's")
"""Placeholder for the implementation of the cluster's file, in values that name none."""


def implementation_on(
    cluster: Cluster, name: str | None = None, fitted: Mapping[str, Table] | None = None
) -> Implementation:
    """The implementation of that name, or the one that the cluster's file says."""
    if name is not None:
        return find_implementation(name, fitted)
    try:
        return find_implementation(cluster.implementation, fitted)
    except InvalidConfiguration as error:
        raise InvalidConfiguration("cluster", f"{cluster.name}: {error}") from None
