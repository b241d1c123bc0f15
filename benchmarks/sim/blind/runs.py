"""Runs that were predicted before their results were read: the first table of docs/accuracy.md.

Three files, each committed before the next was made: `configurations.csv`, the frozen set, without
anything of a result; `predicted.csv`; `measured.csv`. Nothing is fitted to them, and what a version
predicted stays.

`python -m benchmarks.sim.blind.runs configurations|predicted|measured SOURCE` writes a table to
standard output; a SOURCE is a folder with a checkout each of MLPerf's results (`mlperf-5.1`) and
of the projects whose pages are read (`dgxc`, `automodel`, `maxtext`).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sim.blind import logs, maxtext, readmes
from benchmarks.sim.blind.submissions import Open, submissions
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.uncertainty import interval

FOLDER = Path(__file__).parent
MLPERF = "mlperf-5.1"
PLACES = {"dgxc-llama": "dgxc/llama3.1/README.md", "dgxc-nemotron": "dgxc/nemotron/README.md"}
PLACES["automodel"] = "automodel/docs/performance-summary.mdx"
MAXTEXT = "maxtext/README.md"


def configurations(folder: Path) -> Iterator[dict[str, Any]]:
    """The frozen set; what a submission leaves open is named on standard error."""
    for each in submissions(folder / MLPERF):
        try:
            yield each.row
        except Open as reason:
            print(f"{each.name}: {reason}", file=sys.stderr)
    for source, place in PLACES.items():
        yield from readmes.configurations(source, (folder / place).read_text(encoding="utf-8"))
    yield from maxtext.configurations((folder / MAXTEXT).read_text(encoding="utf-8"))


def predicted(_: Path) -> Iterator[dict[str, Any]]:
    """The step time of each run of the set and its 80 % interval."""
    for row in table("configurations"):
        experiment = experiment_in(row)
        physical = experiment.require_physical()
        timeline = simulate(experiment.graph(), physical)
        within = interval(timeline, physical)
        times = (timeline.step_time, within.low, within.high)
        names = ("step_seconds", "low", "high")
        yield {
            "run": row["run"],
            **{name: f"{x:.5g}" for name, x in zip(names, times, strict=True)},
        }


def measured(folder: Path) -> Iterator[dict[str, Any]]:
    """The measured step time of each run: of several logs, their median."""
    known = {row["run"] for row in table("configurations")}
    for each in submissions(folder / MLPERF):
        if each.name in known:
            times = [logs.step_seconds(path.read_text().splitlines()) for path in each.logs]
            yield {"run": each.name, "step_seconds": f"{median(times):.5g}"}
    for source, place in PLACES.items():
        text = (folder / place).read_text(encoding="utf-8")
        for name, seconds in readmes.results(source, text):
            yield {"run": name, "step_seconds": f"{seconds:.5g}"}
    for name, seconds in maxtext.results((folder / MAXTEXT).read_text(encoding="utf-8")):
        yield {"run": name, "step_seconds": f"{seconds:.5g}"}


def experiment_in(row: Mapping[str, str]) -> Experiment:
    """The experiment of a row of the set; raises `InvalidConfiguration` with the run's name."""
    try:
        return experiment_of({name: text for name, text in row.items() if text and name != "run"})
    except InvalidConfiguration as error:
        raise InvalidConfiguration("run", f"{row['run']}: {error}") from None


def table(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


TABLES = {each.__name__: each for each in (configurations, predicted, measured)}


def main(words: list[str]) -> None:
    if len(words) != 2 or words[0] not in TABLES:
        raise SystemExit(f"usage: python -m benchmarks.sim.blind.runs {'|'.join(TABLES)} FOLDER")
    rows = list(TABLES[words[0]](Path(words[1])))
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


if __name__ == "__main__":
    main(sys.argv[1:])
