"""Training from Python: your own model, by the schedule of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfpp.api.running.jobs import checked_plan, job_of
from bfpp.api.running.run_memory import memory_of_job, require_memory, start_of_job
from bfpp.executor.events import Listener, Message
from bfpp.executor.settings import BackendName, Optimization, dtype_named, kept_by
from bfpp.launchers.own.model import require_layers, require_weights, transformer_source
from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.errors import chosen
from bfpp.schedules.formats.python_file import module_name
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.hugging_face import is_config
from bfpp.sim.models.model import Transformer, load_model

if TYPE_CHECKING:
    from bfpp.executor.run.session import TrainingResult
    from bfpp.executor.train.job import Job


def train(
    model: Callable[[int], Any] | str | Transformer,
    experiment: Experiment,
    *,
    steps: int,
    backend: str = "local",
    precision: str | None = None,
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
    `weights` to begin with and the `precision` are as `bfpp run` takes them; without it, it is the
    experiment's, or fp32. What is recomputed, the experiment says, too. `settings` are fields of
    `bfpp.executor.train.job.Job` (`optimization`, `saving`, `evaluation`, `compile`, ...).
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

    _require_runnable(experiment.configuration.degrees, steps)
    dtype = dtype_named(precision or experiment.precision or "fp32")
    settings = _kept(experiment) | settings
    optimization = settings.pop("optimization", Optimization())
    job = job_of(
        experiment,
        _source(model, None if weights is None else Path(weights)),
        steps=steps,
        backend=chosen(BackendName, "backend", backend),
        microbatch_size=experiment.configuration.microbatch_size,
        precision=dtype,
        optimization=optimization.for_precision(dtype),
        **settings,
    )
    _check(job, memory_check=memory_check)
    outcome = launch(in_each_process, job, job.processes, on_message=_listener(on_step, on_message))
    if outcome is None:
        raise InvalidConfiguration("backend", "under torchrun, use bfpp run")
    return outcome


def _kept(experiment: Experiment) -> dict[str, Any]:
    """The settings by what the experiment recomputes, if it says so."""
    policy = experiment.recomputation
    return {} if policy is None else kept_by(policy)


def _check(job: Job, *, memory_check: bool) -> None:
    """Raise `InvalidConfiguration` for a job that cannot be run, or has too little memory."""
    plan = checked_plan(job)
    if memory_check:
        require_memory(job, plan, memory_of_job(job, plan), start_of_job(job, plan))


def _require_runnable(degrees: Degrees, steps: int) -> None:
    """Raise `InvalidConfiguration` for degrees that can be simulated only, and for no steps."""
    if not isinstance(steps, int) or steps < 1:
        raise InvalidConfiguration("steps", f"{steps!r} is not a positive whole number")
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
        path, is_named, name = model.rpartition(":")
        if not is_named:
            raise InvalidConfiguration("model", f"{model} is neither FILE.py:FUNCTION nor .json")
        require_weights(weights, model)
        return FunctionSource(Path(path), name, weights)
    if not callable(model):
        raise InvalidConfiguration("model", f"{model!r} is no function that takes a seed")
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
