"""Training from Python: a model of one's own, by the schedule of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.jobs import require_runnable
from bfpp.run_memory import memory_of_job, require_memory
from bfpp.run_options import PRECISIONS
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.python_file import module_name
from bfpp.sim.experiment import Experiment
from bfpp.sim.model import Transformer
from bfpp.trained_model import require_layers, ties, transformer_source

if TYPE_CHECKING:
    from bfpp.executor.events import Message
    from bfpp.executor.session import TrainingResult


def train(
    model: Callable[[int], Any] | str | Transformer,
    experiment: Experiment,
    *,
    steps: int,
    backend: str = "local",
    precision: str = "fp32",
    memory_check: bool = True,
    on_step: Callable[[Message], None] | None = None,
    on_message: Callable[[Message], None] | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train a model for some steps, divided and ordered as the experiment says.

    `model` is a function of a Python file that takes a seed and returns a
    `bfpp.executor.model.Model`, or its name, `FILE.py:FUNCTION`: every process imports it. Or the
    sizes of a transformer, which learns the text that `bfpp run` does. `precision` is that of
    `bfpp run`; `settings` are those of `bfpp.executor.job.Job` (`optimization`, `saving`,
    `evaluation`, `recomputation`, `compile`, `cuda_graphs`, ...). `on_step` is called after each
    step, with what `bfpp.executor.events` says of it; `on_message` with every event.

    >>> import bfpp
    >>> tiny = bfpp.Transformer(
    ...     "tiny", layers=2, hidden=16, heads=2, sequence=8, vocabulary=257, tied_embeddings=False
    ... )
    >>> experiment = bfpp.Experiment("1f1b", pp=2, microbatches=4, dp=1)
    >>> outcome = bfpp.train(tiny, experiment, steps=3, on_step=lambda step: print(step["step"]))
    0
    1
    2
    >>> outcome.reports[-1].loss < outcome.reports[0].loss
    True

    Needs torch. Raises `InvalidConfiguration` for what cannot be run, or is predicted to need more
    memory than there is (unless `memory_check` is false), and
    `bfpp.executor.processes.RunFailed` where a process failed.
    """
    from bfpp.executor.job import Job
    from bfpp.executor.processes import launch
    from bfpp.executor.session import train as in_each_process
    from bfpp.executor.settings import BackendName, DType, Optimization

    configuration = experiment.configuration
    degrees = configuration.degrees
    require_runnable(experiment)
    for name in ("cp", "ep"):
        if getattr(degrees, name) > 1:
            raise InvalidConfiguration(name, "can be simulated only; pp, dp and tp can be run")
    numbers = DType(PRECISIONS.get(precision, precision))
    optimization = settings.pop("optimization", Optimization()).for_precision(numbers)
    measures = configuration.communication.clipping or optimization.needs_norm
    source = _source(model)
    tied = ties(source) or configuration.communication.tied_embeddings
    job = Job(
        schedule=configuration.schedule,
        layout=configuration.layout,
        communication=replace(configuration.communication, clipping=measures, tied_embeddings=tied),
        model=source,
        steps=steps,
        backend=BackendName(backend),
        dp=degrees.dp,
        dp_replicate=degrees.dp_replicate,
        tp=degrees.tp,
        sequence_parallel=bool(experiment.sequence_parallel),
        offload_share=experiment.offload_share,
        microbatch_size=configuration.microbatch_size,
        precision=numbers,
        optimization=optimization,
        cut=experiment.cut_of_any_model,
        **settings,
    )

    def listen(message: Message) -> None:
        if on_step and message["event"] == "step":
            on_step(message)
        if on_message:
            on_message(message)

    job.require_devices()
    plan = job.plan()
    plan.check()
    if memory_check:
        require_memory(job, plan, memory_of_job(job, plan))
    outcome = launch(in_each_process, job, job.processes, on_message=listen)
    if outcome is None:
        raise InvalidConfiguration("backend", "under torchrun, use bfpp run")
    return outcome


def _source(model: Callable[[int], Any] | str | Transformer) -> Any:
    """Where processes find the function, or what they make the transformer of."""
    from bfpp.executor.sources import FunctionSource

    if isinstance(model, Transformer):
        require_layers(model)
        return transformer_source(model, None, is_causal=True)
    if isinstance(model, str):
        path, _, name = model.rpartition(":")
        return FunctionSource(Path(path), name)
    file = Path(inspect.getsourcefile(model) or "")
    if not (file.is_file() and model.__name__.isidentifier()):
        raise InvalidConfiguration(
            "model", f"{model.__name__} must be in a Python file that processes can import, by name"
        )
    if model.__module__ == module_name("model", file):
        raise InvalidConfiguration(
            "model",
            f"{file.name} trains as soon as a process imports its {model.__name__}: call "
            "bfpp.train under if __name__ == '__main__':",
        )
    return FunctionSource(file, model.__name__)
