"""Training from Python: a model of one's own, by the schedule of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment import Experiment

if TYPE_CHECKING:
    from bfpp.executor.events import Message
    from bfpp.executor.session import Outcome


def train(
    model: Callable[[int], Any] | str,
    experiment: Experiment,
    *,
    steps: int,
    backend: str = "local",
    on_message: Callable[[Message], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Train a model for some steps, divided and ordered as the experiment says.

    `model` is a function of a Python file that takes a seed and returns a
    `bfpp.executor.model.Model`, or its name, `FILE.py:FUNCTION`: every process imports it.
    `settings` are those of `bfpp.executor.job.Job` (`precision`, `optimization`, `saving`, ...).
    Needs torch. Raises `InvalidConfiguration` for what cannot be run, and
    `bfpp.executor.processes.RunFailed` where a process failed.
    """
    from bfpp.executor.job import Job
    from bfpp.executor.processes import launch
    from bfpp.executor.session import train as in_each_process
    from bfpp.executor.settings import BackendName

    configuration = experiment.configuration
    degrees = configuration.degrees
    if degrees.devices != degrees.pp * degrees.dp:
        raise InvalidConfiguration("tp", "only pipeline and data parallelism can be run")
    job = Job(
        schedule=configuration.schedule,
        layout=configuration.layout,
        communication=configuration.communication,
        model=_source(model),
        steps=steps,
        backend=BackendName(backend),
        dp=degrees.dp,
        dp_replicate=degrees.dp_replicate,
        microbatch_size=configuration.microbatch_size,
        **settings,
    )
    outcome = launch(in_each_process, job, job.processes, on_message=on_message or (lambda _: None))
    if outcome is None:
        raise InvalidConfiguration("backend", "under torchrun, use bfpp run")
    return outcome


def _source(model: Callable[[int], Any] | str) -> Any:
    """Where processes find the function."""
    from bfpp.executor.sources import FunctionSource

    if isinstance(model, str):
        path, _, name = model.rpartition(":")
        return FunctionSource(Path(path), name)
    path = inspect.getsourcefile(model) or ""
    if not Path(path).exists():
        raise InvalidConfiguration(
            "model", f"{model.__name__} must be in a Python file, for processes to import it"
        )
    return FunctionSource(Path(path), model.__name__)
