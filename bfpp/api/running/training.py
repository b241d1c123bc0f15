"""Training from Python: your own model, by the schedule of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.api.running.jobs import checked_plan, job_of
from bfpp.api.running.run_memory import memory_of_job, require_memory, start_of_job
from bfpp.executor.events import Listener, Message
from bfpp.executor.settings import PRECISIONS, BackendName, DType, Optimization
from bfpp.launchers.own.model import require_layers, require_weights, transformer_source
from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.formats.python_file import module_name
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import Transformer, load_model

if TYPE_CHECKING:
    from bfpp.executor.run.session import TrainingResult


def train(
    model: Callable[[int], Any] | str | Transformer,
    experiment: Experiment,
    *,
    steps: int,
    backend: str = "local",
    precision: str = "fp32",
    weights: Path | str | None = None,
    memory_check: bool = True,
    on_step: Listener | None = None,
    on_message: Listener | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train a model for some steps, divided and ordered as the experiment says.

    `model` is a function of a Python file that takes a seed and returns a
    `bfpp.executor.model.model.Model`, or its name, `FILE.py:FUNCTION`: every process imports it. Or
    the sizes of a transformer, or a `config.json`, trained on the same text as by `bfpp run`.
    `weights` to begin with and the `precision` are as `bfpp run` takes them; `settings` are fields
    of `bfpp.executor.train.job.Job` (`optimization`, `saving`, `evaluation`, `compile`, ...).
    `on_step` is called with the event of each step (`bfpp.executor.events`), `on_message` with all.

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

    Needs torch. Raises `InvalidConfiguration` for what cannot be run or, with `memory_check`, will
    run out of memory, and `bfpp.executor.processes.RunFailed` where a process failed.
    """
    from bfpp.executor.processes import launch
    from bfpp.executor.run.session import train as in_each_process

    _require_degrees(experiment.configuration.degrees)
    dtype = DType(PRECISIONS.get(precision, precision))
    optimization = settings.pop("optimization", Optimization())
    job = job_of(
        experiment,
        _source(model, None if weights is None else Path(weights)),
        steps=steps,
        backend=BackendName(backend),
        microbatch_size=experiment.configuration.microbatch_size,
        precision=dtype,
        optimization=optimization.for_precision(dtype),
        **settings,
    )
    plan = checked_plan(job)
    if memory_check:
        require_memory(job, plan, memory_of_job(job, plan), start_of_job(job, plan))
    outcome = launch(in_each_process, job, job.processes, on_message=_listener(on_step, on_message))
    if outcome is None:
        raise InvalidConfiguration("backend", "under torchrun, use bfpp run")
    return outcome


def _require_degrees(degrees: Degrees) -> None:
    """Raise `InvalidConfiguration` for degrees of parallelism that can be simulated only."""
    for name in ("cp", "ep"):
        if getattr(degrees, name) > 1:
            raise InvalidConfiguration(name, "can be simulated only; pp, dp and tp can be run")


def _listener(on_step: Listener | None, on_message: Listener | None) -> Listener:
    """Call `on_step` with the events of steps, and `on_message` with all."""

    def listen(message: Message) -> None:
        if on_step and message["event"] == "step":
            on_step(message)
        if on_message:
            on_message(message)

    return listen


def _source(model: Callable[[int], Any] | str | Transformer, weights: Path | None) -> Any:
    """The source that processes load the model from."""
    from bfpp.executor.model.sources import FunctionSource

    file = model if isinstance(model, str) and is_config(model) else None
    sizes = load_model(file) if file else model
    if isinstance(sizes, Transformer):
        require_layers(sizes)
        require_weights(weights)
        return transformer_source(sizes, None, is_causal=True, file=file, weights=weights)
    if isinstance(model, str):
        require_weights(weights, model)
        path, _, name = model.rpartition(":")
        return FunctionSource(Path(path), name, weights)
    assert callable(model)  # noqa: S101
    module = Path(inspect.getsourcefile(model) or "")
    if not (module.is_file() and model.__name__.isidentifier()):
        raise InvalidConfiguration(
            "model", f"{model.__name__} must be in a Python file that processes can import, by name"
        )
    if model.__module__ == module_name("model", module):
        raise InvalidConfiguration(
            "model",
            f"{module.name} trains as soon as a process imports its {model.__name__}: call "
            "bfpp.train under if __name__ == '__main__':",
        )
    require_weights(weights, f"{module.name}:{model.__name__}")
    return FunctionSource(module, model.__name__, weights)
