"""A machine's measurements, made now or read from a file, and the cluster that they belong to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.measurements.measured_kernels import Row
from bfpp.terminal.error_lines import blaming

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
"""For a part of a GPU's name, the preset that has the constants that are not measured."""

About = dict[str, str | int]


@contextmanager
def progress(options: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Show the next measurement on a terminal, unless JSON is asked for."""
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda what: status.update(f"measuring {what}")


class Measured(NamedTuple):
    """A cluster before it is fitted, the measurements to fit it to, and their source."""

    cluster: Cluster
    rows: list[Row]
    about: About


def of_system(path: Path, like: str | None = None) -> Measured:
    """The measurements in a system file of SimuMax.

    Raises `InvalidInput` for a file that cannot be read, or a cluster that `like` does not name.
    """
    from bfpp.sim.measurements.simumax import read_system

    with blaming("--simumax"):
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
) -> Measured | None:
    """Measure a device of this machine, and the links between `members` devices of its kind.

    `report` is called before each measurement. Under torchrun the first process
    measures the device; all measure the links, and the others return None.

    Raises `InvalidConfiguration` for a device that is not on this machine, for one that no preset
    matches where `like` names no cluster, and `RunFailed` if a process fails.
    """
    from bfpp.executor import measure
    from bfpp.executor.devices.devices import device_named

    device = device_named(name)
    about = measure.about_device(device)
    base = _like(like, str(about["device"]))
    design = measure.design_of(device, quick)
    members = members or measure.members_of(device)
    report("links")
    links = measure.measure_links(device, design, members)
    if links is None:
        return None
    rows: list[Row] = []
    for row in measure.measure(device, design):
        report(row["kind"])
        rows.append(row)
    own = replace(
        base.device,
        memory=int(about.get("memory", base.device.memory)),
        multiprocessors=int(about.get("multiprocessors", base.device.multiprocessors)),
    )
    about |= {"members": members, "like": base.name}
    return Measured(replace(base, device=own), [*rows, *links], about)


def _like(given: str | None, device: str) -> Cluster:
    """The cluster with the constants that are not measured; raises `InvalidConfiguration`."""
    fitting = (name for part, name in LIKE.items() if part.lower() in device.lower())
    name = given or next(fitting, None)
    if name is None:
        raise InvalidConfiguration("like", f"must be given: no preset has GPUs like {device!r}")
    try:
        return load_cluster(name)
    except InvalidConfiguration as error:
        raise InvalidConfiguration("like", error.reason) from None
