"""Choices in the explorer, and the experiments that they make.

A choice has the name of an experiment's value, and is a text, as in a form; an empty one is none.
Files are no choices: a page names presets and registered schedules, and brings its orders along.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bfpp.options.named_experiments import named
from bfpp.schedules import InvalidConfiguration, registered_schedules
from bfpp.schedules.formats.orders_file import orders_of_text
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.reading import values_read
from bfpp.sim.experiment.side_by_side import side_by_side
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS
from bfpp.sim.presets.files import preset_names

ORDERS = "orders.csv"
"""Name of pasted orders."""


class Slider(NamedTuple):
    """The numbers of a slider; its number field takes larger ones too."""

    least: float
    most: float
    step: float


COUNTS = {
    "pp": 32, "loops": 8, "microbatches": 64, "tp": 16, "dp": 64, "microbatch_size": 16,
}  # fmt: skip
SECONDS = ("forward", "backward", "transfer", "gather", "reduce", "optimizer")
PRICES = {"forward": 1, "backward": 2}
"""Default seconds of operations that are not free."""

RANGES = {name: Slider(1, most, 1) for name, most in COUNTS.items()}
RANGES |= {name: Slider(0, 4, 0.05) for name in SECONDS}

COSTS = "costs"
"""Choice between the page's tabs."""

MODEL, ABSTRACT_TAB = "model", "abstract"
"""Kinds of costs: of a model on a cluster, or seconds of abstract passes."""

TABS = {MODEL: "A model on a cluster", ABSTRACT_TAB: "Abstract costs"}
"""Tabs of the form, by the kind of costs."""

OF_MODEL = "Model and cluster"
GROUPS = {
    OF_MODEL: ("model", "cluster", "implementation", "precision"),
    "Schedule": ("schedule", "beside", "pp", "loops", "microbatches"),
    "Parallelism and memory": ("tp", "dp", "microbatch_size", "recompute", "attention"),
    "Abstract costs, in seconds": SECONDS,
    "Communication": ("sharding", "pp_overlap", "dp_overlap", "gather_per", "reduce_per", "p2p"),
    "Your own orders": ("orders",),
}  # fmt: skip
OPEN = (OF_MODEL, "Schedule", "Parallelism and memory", "Abstract costs, in seconds")
MODEL_ONLY = (*GROUPS[OF_MODEL], *GROUPS["Parallelism and memory"])

OPENING = {
    "model": "llama3-70b", "cluster": "dgx-h100", "schedule": "depth-first", "beside": "1f1b",
    "pp": "4", "tp": "8", "dp": "4", "loops": "4", "microbatches": "16", "sharding": "zero1",
    "transfer": "0.1", COSTS: MODEL,
}  # fmt: skip
"""Choices that the explorer opens with."""

TITLES = {
    "beside": "compare with", "pp": "pipeline ranks", "microbatches": "micro-batches",
    "pp_overlap": "overlap transfers", "dp_overlap": "overlap collectives",
    "p2p": "transfers posted", "tp": "tensor-parallel", "dp": "data-parallel",
    "microbatch_size": "micro-batch size", "orders": "orders, a line a rank",
}  # fmt: skip
EXPLAINED = {
    "schedule": "the order of passes",
    "beside": "another schedule of the same model, drawn below",
    "orders": "orders as bfpp orders prints them, in the schedule's place",
}
UNSAID = {"implementation": "the cluster's", "precision": "as usual", "attention": "as usual"}
"""Names of an empty choice, where it does not mean none."""

NAMES = (COSTS, *(name for names in GROUPS.values() for name in names))


def groups() -> list[dict[str, Any]]:
    """The fields of the form, group by group."""
    return [
        {"title": title, "open": title in OPEN, "fields": [_field(name) for name in names]}
        for title, names in GROUPS.items()
    ]


def defaults() -> dict[str, str]:
    """The values that the form has before anything is chosen."""
    return {name: OPENING.get(name) or _default(name) for name in NAMES}


def _default(name: str) -> str:
    default = DEFAULTS.get(name)
    if isinstance(default, bool):
        return str(default).lower()
    if name in SECONDS:
        return f"{PRICES.get(name, 0)}"
    return "" if default is None else str(default)


def _field(name: str) -> dict[str, Any]:
    option = OPTIONS.get(name)
    field: dict[str, Any] = {
        "name": name,
        "title": TITLES.get(name, name.replace("_", " ")),
        "help": EXPLAINED.get(name) or (option.help if option else ""),
        "kind": option.kind if option and option.kind in ("flag", "count", "seconds") else "text",
    }
    if name in SECONDS:
        field["costs"] = ABSTRACT_TAB
    elif name in MODEL_ONLY:
        field["costs"] = MODEL
    if chosen := _chosen(name):
        field["choices"] = chosen
        field["unsaid"] = UNSAID.get(name, "none")
    if name == "orders":
        field["kind"] = "orders"
    return field | (RANGES[name]._asdict() if name in RANGES else {})


def _chosen(name: str) -> list[str]:
    """Alternatives of an option, if they can be listed."""
    if name in ("schedule", "beside"):
        return [*([""] if name == "beside" else []), *registered_schedules()]
    if name in ("model", "cluster"):
        return preset_names(name)
    if name == COSTS:
        return [*TABS]
    option = OPTIONS.get(name)
    choices = [str(each) for each in option.choices] if option else []
    return choices if not choices or DEFAULTS[name] is not None else ["", *choices]


class ComparedExperiments(NamedTuple):
    """Experiments of one model, one or two, and the command line that compares them."""

    experiments: list[Experiment]
    command: str


def chosen(choices: Mapping[str, str]) -> ComparedExperiments:
    """Experiments of the choices, over the opening ones; raises `InvalidConfiguration`."""
    for name, text in choices.items():
        if name not in NAMES or not isinstance(text, str):
            raise InvalidConfiguration(name, "is no choice")
    said = {name: text.strip() for name, text in {**defaults(), **choices}.items()}
    said = {name: text for name, text in said.items() if text}
    if "schedule" not in said:
        raise InvalidConfiguration("schedule", "must be chosen")
    for name in (COSTS, "schedule", "beside", "model", "cluster"):
        if name in said and said[name] not in _chosen(name):
            raise InvalidConfiguration(name, f"{said[name]!r} is not one of those listed")
    orders, first = said.pop("orders", ""), said.pop("schedule")
    names = [ORDERS if orders else first, *([said.pop("beside")] if "beside" in said else [])]
    known = [_pasted(orders) if name == ORDERS else named(name) for name in names]
    values = _of_one_kind(said)
    read = values_read(values, {})
    if orders:  # decide what the form may leave open
        given = {name: getattr(known[0], name) for name in ("pp", "microbatches")}
        read |= {name: value for name, value in given.items() if name not in choices}
    return ComparedExperiments(side_by_side(known, read), _command(names, values))


def _pasted(text: str) -> Experiment:
    schedule = orders_of_text(ORDERS, text.encode(errors="surrogatepass"))
    for name, value in schedule.values.items():
        if name in OPTIONS and OPTIONS[name].kind == "name" and "." in str(value):
            raise InvalidConfiguration(name, f"{value!r} is a file, which a page does not name")
    return Experiment(schedule, **values_read(schedule.values, {}))


def _of_one_kind(said: Mapping[str, str]) -> dict[str, str]:
    """The values but those of the other tab, of a model or of abstract costs, and defaults."""
    is_model = said.get(COSTS, MODEL) == MODEL
    others = [COSTS, *(SECONDS if is_model else MODEL_ONLY)]
    if is_model and "model" not in said:
        raise InvalidConfiguration("model", "must be chosen")
    return {
        name: text
        for name, text in said.items()
        if name in ("pp", "microbatches") or (name not in others and text != _default(name))
    }


def _command(names: Sequence[str], values: Mapping[str, str]) -> str:
    """The command that prints the same."""
    words = ["bfpp", "compare", *names]
    for name, text in values.items():
        option = name.replace("_", "-")
        if OPTIONS[name].kind == "flag":
            words.append(f"--{option}" if text == "true" else f"--no-{option}")
        else:
            words += [f"--{option}", text]
    return shlex.join(words)
