"""Values of a step whose replicas, ranks or micro-batches differ."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from bfpp.sim.experiment.values.option import UNEVEN, option
from bfpp.sim.experiment.values.physical import PhysicalValues
from bfpp.sim.unevenness.documents import PACKINGS

SOURCES_OF_UNEVENNESS = (
    "factors", "lengths", "images", "routing", "slow", "slow_links", "jitter", "pauses",
)  # fmt: skip
"""Values without any of which all are alike: work first, then what makes it slower."""


@dataclass(frozen=True)
class UnevenValues(PhysicalValues):
    """Sources of unevenness, and how many steps are sampled where some are random."""

    _: KW_ONLY
    slow: str | None = option(
        None,
        UNEVEN,
        "text",
        "devices whose passes take so many times as long, such as 'rank=3:1.2 "
        "replica=1,stage=0:1.5'; also node=N, with a model",
        "PLACE:X ...",
    )
    slow_links: str | None = option(
        None,
        UNEVEN,
        "text",
        "links on which communication takes so many times as long: of two ranks (link=2-3:2), or "
        "all of a rank or a replica (replica=1,rank=0:1.5); collectives wait for the slowest",
        "PLACE:X ...",
    )
    jitter: float | None = option(
        None,
        UNEVEN,
        "number",
        "standard deviation of each pass's time, as a share of its mean",
        "X",
    )
    pauses: str | None = option(
        None,
        UNEVEN,
        "text",
        "pauses of each worker, such as 'gc:0.3/50 data:0.1/20@rank=0': 0.3 s once in 50 steps, "
        "and 0.1 s once in 20 on rank 0",
        "NAME:S/STEPS ...",
    )
    lengths: str | None = option(
        None,
        UNEVEN,
        "name",
        "lengths of documents in tokens: a list (512,4096), a histogram (512:10,4096:1; bins: "
        "512-1024:10), or a .txt, .csv (length,count) or .parquet file (FILE.parquet:COLUMN)",
        "LENGTHS|FILE",
    )
    packing: str = option(
        "concatenate",
        UNEVEN,
        "choice",
        "how documents fill sequences: end to end and cut (concatenate), each into the first with "
        "room (first-fit), longest first into the fullest (best-fit), or one each, padded (none)",
        choices=tuple(PACKINGS),
    )
    packed_length: int | None = option(
        None,
        UNEVEN,
        "count",
        "tokens of a full sequence (default: the model's, or the longest document)",
    )
    attention_share: float | None = option(
        None,
        UNEVEN,
        "number",
        "share of a full sequence's pass that core attention takes, which grows with the square "
        "of a document (default: the model's, or 0)",
        "X",
    )
    images: str | None = option(
        None,
        UNEVEN,
        "name",
        "images of samples, as a list, a histogram or a file, like --lengths",
        "NUMBERS|FILE",
    )
    image_seconds: float | None = option(
        None,
        UNEVEN,
        "seconds",
        "forward pass of one image through the encoder, in the first stage; backward takes twice",
        "S",
    )
    routing: str | None = option(
        None,
        UNEVEN,
        "name",
        "tokens that a router sent to each expert: a list (90,10,50,50), or a .csv file "
        "(layer,expert,count, and observation)",
        "LOADS|FILE",
    )
    expert_share: float | None = option(
        None,
        UNEVEN,
        "number",
        "share of a pass that routed experts take (default: the model's, or 0)",
        "X",
    )
    factors: str | None = option(
        None,
        UNEVEN,
        "name",
        "a .csv table of factors, or of seconds, of tasks by replica, rank, stage, unit, "
        "microbatch and operation",
        "FILE",
    )
    sampled_steps: int = option(32, UNEVEN, "count", "steps to simulate where chance has a part")
    sample_seed: int = option(1, UNEVEN, "count", "seed of what is drawn for these steps")
