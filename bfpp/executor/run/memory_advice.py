"""Advice for a run that is out of memory."""

from __future__ import annotations

from bfpp.executor.settings import Activations
from bfpp.executor.train.job import Job
from bfpp.schedules import Sharding


def to_save_memory(job: Job) -> str:
    """The options that a job leaves unused, the one that costs least time first."""
    is_whole = job.communication.sharding is not Sharding.FULL and job.dp > 1
    options = [
        "--recompute full" if job.activations is Activations.KEEP else "",
        "--sharding full" if is_whole else "",
        "a smaller --microbatch-size" if job.microbatch_size > 1 else "",
        "more ranks (--pp)",
    ]
    return f"less is needed with {' or '.join(filter(None, options))}"
