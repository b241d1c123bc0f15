"""The reference of the Python names, one page a layer, from their docstrings."""

from __future__ import annotations

from enum import StrEnum

import bfpp
from bfpp.sim.experiment.values import DEFAULTS, OPTIONS

FOLDER = "reference/python"

LAYERS = {
    "bfpp": ("experiments", "Experiments and predictions", "Say what is trained, and ask for it."),
    "bfpp.schedules": ("schedules", "Schedules and task graphs", "What runs, and in which order."),
    "bfpp.sim": ("costs", "Costs and simulation", "How long it takes."),
    "bfpp.traces": ("timelines", "Timelines", "What happened: metrics, figures and files."),
}
"""By layer: the page's name, its title, and what it is about."""

FIRST = {"Experiment": "bfpp", "experiment_of": "bfpp"}
"""Names that are looked for elsewhere than in the layer that has them."""


def layer_of(name: str) -> str:
    """The layer on whose page a public name is."""
    home = ".".join(getattr(bfpp, name).__module__.split(".")[:2])
    return FIRST.get(name, home if home in LAYERS else "bfpp")


def pages() -> dict[str, str]:
    """Each page's Markdown, by its path in the docs."""
    rows, found = [], {}
    for layer, (page, title, about) in LAYERS.items():
        names = [name for name in bfpp.__all__ if layer_of(name) == layer]
        body = "\n".join(map(_entry, names))
        found[f"{FOLDER}/{page}.md"] = f"# {title}\n\n{about}\n\n{body}"
        links = ", ".join(f"[`{name}`]({page}.md#bfpp.{name})" for name in names)
        rows.append(f"| [{title}]({page}.md) | {links} |")
    table = "\n".join(rows)
    return {f"{FOLDER}/index.md": f"{_INTRODUCTION}{table}\n", **found}


def _entry(name: str) -> str:
    """A name; an experiment's many values are a table instead of a signature."""
    if name != "Experiment":
        return f"::: bfpp.{name}\n"
    rows = "\n".join(
        f"| `{value}` | `{_shown(DEFAULTS[value])}` | {option.help} |"
        for value, option in OPTIONS.items()
    )
    return (
        f"::: bfpp.{name}\n    options:\n      show_signature: false\n\n"
        "### Values of an experiment\n\n"
        f"| value | default | meaning |\n| --- | --- | --- |\n{rows}\n"
    )


def _shown(default: object) -> str:
    """A default as it is written."""
    return str(default) if isinstance(default, StrEnum) else repr(default)


_INTRODUCTION = """\
# Python

All public names are imported from `bfpp`; each is loaded when it is first used. What cannot be used
raises [`InvalidInput`](schedules.md#bfpp.InvalidInput), or
[`InvalidConfiguration`](schedules.md#bfpp.InvalidConfiguration) with the field at fault.

| page | names |
| --- | --- |
"""
