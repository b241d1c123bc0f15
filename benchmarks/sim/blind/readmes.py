"""Tables of projects' pages: configurations, with every column of results dropped, and results.

`readmes.toml` says of each table where it is, which columns are a configuration's, and what the
page does not say. A configuration's page and its commit are named there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

HEADING = re.compile(r"^(#+ |\*\*)(.+?)\**:?\s*$")
SECTIONS = ("# ", "## ")
RULE = re.compile(r"^:?-+:?$")

COLUMNS = {
    "Model": "model",
    "#GPUs": "gpus",
    "GPUs": "gpus",
    "Seq Length": "seq_length",
    "SeqLen": "seq_length",
    "TP": "tp",
    "PP": "pp",
    "CP": "cp",
    "EP": "ep",
    "VP": "loops",
    "MBS": "microbatch_size",
    "GBS": "batch",
}
"""Columns of a configuration; all others are dropped."""

SECONDS = ("Time per Global Step (s)",)
STEP = "Training step time (seconds per step)"

Row = dict[str, str]


@cache
def pages() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "readmes.toml").read_text(encoding="utf-8"))


def tables(text: str) -> Iterator[tuple[str, list[Row]]]:
    """The tables of a page, each with its section and the heading that it stands under."""
    section, heading, head, rows = "", "", None, []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if head is None:
                head = cells
            elif not all(map(RULE.match, cells)):
                rows.append(dict(zip(head, cells, strict=False)))
            continue
        if head is not None:
            yield heading, rows
            head, rows = None, []
        if match := HEADING.match(line):
            section = match[2] if match[1] in SECTIONS else section
            heading = f"{section} > {match[2]}"


def configurations(source: str, text: str) -> Iterator[dict[str, Any]]:
    """The configurations of a page, as experiments; the columns of results are not looked at."""
    page = pages()[source]
    for heading, rows in tables(text):
        if not re.search(page["heading"], heading) or "TP" not in (rows[:1] or [{}])[0]:
            continue
        for row in rows:
            said = {name: row[column] for column, name in COLUMNS.items() if column in row}
            if (model := page["models"].get(said.pop("model", ""))) is None:
                continue
            for precision in page["precisions"]:
                yield _experiment(source, said, model, precision)


def _experiment(
    source: str, said: Mapping[str, str], model: Mapping[str, Any], precision: str
) -> dict[str, Any]:
    page = pages()[source]
    numbers = {name: _count(text) for name, text in said.items()}
    gpus, batch = numbers.pop("gpus"), numbers.pop("batch")
    dp = gpus // (numbers["tp"] * numbers["pp"] * numbers["cp"])
    loops = numbers.pop("loops") if numbers["pp"] > 1 else 1
    values = {
        "run": f"{source}/{model['model']}/{precision}/{gpus}/{batch}",
        **numbers,
        "dp": dp,
        "loops": loops,
        "microbatches": batch // (dp * numbers["microbatch_size"]),
        "schedule": "interleaved" if loops > 1 else "1f1b",
        **page["all"],
        **page.get(precision, {}),
        **model,
        **model.get(str(gpus), {}),
    }
    return {name: value for name, value in values.items() if not isinstance(value, dict)}


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 1


def results(source: str, text: str) -> Iterator[tuple[str, float]]:
    """Seconds of a step by run, of the tables that `configurations` has and those of results."""
    page = pages()[source]
    for heading, rows in tables(text):
        if re.search(page["heading"], heading):
            for row in rows:
                for column in SECONDS:
                    if column in row and (model := page["models"].get(row["Model"])):
                        sizes = f"{row['#GPUs']}/{row['GBS']}"
                        precision = page["precisions"][0]
                        yield f"{source}/{model['model']}/{precision}/{sizes}", float(row[column])
        for row in rows:
            first, *others = row
            if row[first] == STEP and (found := re.search(page.get("results", "$^"), first)):
                yield from _by_size(source, found, row, others)


def _by_size(
    source: str, found: re.Match[str], row: Row, columns: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Of a table with a column for each size: the runs that it names."""
    (model,) = {each["model"] for each in pages()[source]["models"].values()}
    precision = found["precision"].lower()
    for column in columns:
        if pages()[source]["device"] not in column:
            continue
        gpus = _number(r"(\d+)x", column)
        batch = _number(r"GBS=(\d+)", column) or gpus // 2
        yield f"{source}/{model}/{precision}/{gpus}/{batch}", float(row[column])


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
