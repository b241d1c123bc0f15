"""What is measured of a machine, or was by others, and of which cluster it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.cluster import Cluster, load_cluster
from bfpp.sim.measured_kernels import Row

LIKE = {
    "GB300": "gb300-nvl72",
    "GB200": "gb200-nvl72",
    "B300": "dgx-b300",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "H800": "h800-3200g",
    "A100-SXM4-40GB": "dgx-a100-40gb",
    "A100": "dgx-a100",
    "V100": "dgx1-v100",
}
"""The preset that says what is not measured of a device, by what its name holds."""


About = dict[str, str | int]


@contextmanager
def progress(options: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Shows what is measured next on a terminal, unless JSON is asked for."""
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda what: status.update(f"measuring {what}")


class Measured(NamedTuple):
    """A cluster as far as it is known without measurements, these, and where they are from."""

    cluster: Cluster
    rows: list[Row]
    about: About


def of_system(path: Path, like: str | None = None) -> Measured:
    """What a system file of SimuMax holds."""
    from bfpp.sim.simumax import read_system

    system = read_system(path)
    base = _like(like, system.title)
    about: About = {"SimuMax": system.title, "like": base.name}
    return Measured(system.cluster(base), [*system.rows()], about)


def of_device(
    name: str,
    like: str | None = None,
    quick: bool = False,
    members: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Measured:
    """What a device of this machine takes, and the links to others like it, measured now.

    `report` is called before each measurement. Raises `InvalidConfiguration` for a device that is
    not on this machine, or that no preset matches, unless `like` names a cluster.
    """
    from bfpp.executor import microbenchmarks

    device = microbenchmarks.device_of(name)
    about = microbenchmarks.about_device(device)
    base = _like(like, str(about["device"]))
    design = microbenchmarks.design_of(device, quick)
    members = members or microbenchmarks.members_of(device)
    rows: list[Row] = []
    for row in microbenchmarks.measure(device, design):
        report(row["kind"])
        rows.append(row)
    if members > 1:
        report("collectives")
        rows += microbenchmarks.measure_links(device, design, members)
    own = replace(
        base.device,
        memory=int(about.get("memory", base.device.memory)),
        multiprocessors=int(about.get("multiprocessors", base.device.multiprocessors)),
    )
    about |= {"members": members, "like": base.name}
    return Measured(replace(base, device=own), rows, about)


def _like(given: str | None, device: str) -> Cluster:
    """The cluster that says what is not measured."""
    fitting = (name for part, name in LIKE.items() if part.lower() in device.lower())
    name = given or next(fitting, None)
    if name is None:
        raise InvalidConfiguration("like", f"must be given: no preset has GPUs like {device!r}")
    return load_cluster(name)
