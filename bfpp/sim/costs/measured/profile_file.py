"""Profiles as files: the measurements, the run they hold for, and a key to the numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bfpp.sim.presets.file_kinds import PROFILE

UNITS = {
    "about": "where and how it was measured",
    "run": "what it holds for; of the model's layers, how many at its ends are attached",
    "layers": "in order, `count` alike: seconds of a pass; parameters; bytes of the output",
    "passes": "seconds of a pass besides its layers",
    "channels": "from rank to rank, or from host to host: seconds, and bytes per second",
    "hosts": "processes on each; bytes per second of all that leaves it, and of all that enters",
    "data": "seconds, and seconds for each parameter",
    "copies": "the same where two ranks hold copies of the same stages",
    "muon": "fixed seconds of Muon's matrices, and those of a layer of each kind",
    "launching": "seconds of a host to launch a pass, fixed and of a layer of each kind; others: "
    "any other task; shared: 1 where one host has all ranks and replicas",
    "dispatch": "seconds to launch a task: after another on its lane, or after a cross-lane wait; "
    "and of a rank's thread of passes, to post an end of a transfer",
}
"""Comments of the parts of a profile."""

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML takes without quotes."""


def as_toml(record: Mapping[str, Any]) -> str:
    """A profile as a file, with a key to its numbers."""
    lines = ["# A machine's costs, measured by bfpp calibrate.", f'format = "{PROFILE.format}"']
    for part, content in record.items():
        lines += ["", f"# {UNITS[part]}"]
        if isinstance(content, list):
            lines += [f"{part} = [", *(f"    {inline(each)}," for each in content), "]"]
        else:
            lines.append(f"{part} = {inline(content)}")
    return "\n".join(lines) + "\n"


def inline(value: object) -> str:
    """A value on one line of TOML: six digits of a measurement, all of a whole number."""
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{key(name)} = {inline(each)}" for name, each in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, float):
        rounded = f"{value:.6g}"
        return str(int(value)) if value.is_integer() and float(rounded) != value else rounded
    return json.dumps(value)


def key(name: str) -> str:
    """A key of TOML, in quotes where it needs them."""
    return name if BARE.fullmatch(name) else json.dumps(name)
