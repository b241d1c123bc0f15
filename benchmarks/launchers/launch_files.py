"""Launch files of Megatron-LM and Megatron-Bridge: how many are predicted, and what is left out.

Checkouts are given by BFPP_MEGATRON_LM and BFPP_MEGATRON_BRIDGE; nothing in them is run.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.helpers.measure import Results
from bfpp.api.predictions import predict
from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.schedules import InvalidInput

TESTS = Path("tests/functional_tests/test_cases")
RECIPES = Path("src/megatron/bridge/recipes")

PIPELINE = re.compile(r"pipeline-model-parallel-size: *[2-9]")


class Outcome(NamedTuple):
    """A launch file by its group: what is read of it, or the reason why nothing is predicted."""

    group: str
    launch: LaunchFile | None
    reason: str


def checkout(variable: str) -> Path | None:
    found = os.environ.get(variable)
    return Path(found) if found else None


def commit_of(folder: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()[:10] or "an unknown commit"


def outcome_of(group: str, name: str) -> Outcome:
    try:
        launch = read_launch_file(name)
        predict(launch.experiment)
    except InvalidInput as refused:
        return Outcome(group, None, str(refused).rpartition(f"{name}: ")[2])
    return Outcome(group, launch, "")


def functional_tests(root: Path) -> Iterator[Outcome]:
    """The configurations with a pipeline, by model."""
    for path in sorted(root.joinpath(TESTS).rglob("*.yaml")):
        if PIPELINE.search(path.read_text(encoding="utf-8")):
            yield outcome_of(path.relative_to(root / TESTS).parts[0], str(path))


def recipes(root: Path) -> Iterator[Outcome]:
    """The recipes that pre-train, by family of models."""
    for path in sorted(root.joinpath(RECIPES).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and re.match(r"[a-z]\w*_pretrain_", node.name):
                group = path.relative_to(root / RECIPES).parts[0]
                yield outcome_of(group, f"{path}:{node.name}")


def table_of(
    title: str, target: str, outcomes: list[Outcome], remarks: Iterable[str]
) -> list[Results]:
    groups = defaultdict(list)
    for each in outcomes:
        groups[each.group].append(each)
    rows = [_row(group, groups[group]) for group in sorted(groups)]
    reasons = Counter(each.reason for each in outcomes if each.launch is None)
    left_out = Counter(
        (_kind(each.name), each.reason)
        for outcome in outcomes
        if outcome.launch
        for each in {(each.name, each.reason): each for each in outcome.launch.ignored}.values()
        if each.matters
    )
    return [
        Results(title, target, [*rows, _row("all", outcomes)], [*remarks]),
        Results(
            f"{title}: not predicted",
            "none",
            [{"number": str(count), "reason": reason} for reason, count in reasons.most_common()],
        ),
        Results(
            f"{title}: settings that may matter",
            "none",
            [
                {"number": str(count), "setting": name, "left out, or taken otherwise": reason}
                for (name, reason), count in left_out.most_common()
            ],
        ),
    ]


def _kind(name: str) -> str:
    return "a line of code" if name.startswith("line ") else name


def _row(group: str, outcomes: list[Outcome]) -> dict[str, str]:
    """Numbers of launch files, and the mean numbers of their settings."""
    launches = [each.launch for each in outcomes if each.launch]
    ignored = [each for launch in launches for each in launch.ignored]
    matters = sum(each.matters for each in ignored)
    understood = sum(len(launch.understood) for launch in launches)
    mean = max(len(launches), 1)
    return {
        "of": group,
        "launch files": str(len(outcomes)),
        "predicted": f"{len(launches)} ({len(launches) / len(outcomes):.0%})",
        "settings understood": f"{understood / mean:.0f}",
        "without effect": f"{(len(ignored) - matters) / mean:.0f}",
        "may matter": f"{matters / mean:.0f}",
    }


def run() -> list[Results]:
    found: list[Results] = []
    megatron, bridge = checkout("BFPP_MEGATRON_LM"), checkout("BFPP_MEGATRON_BRIDGE")
    if megatron:
        remarks = [
            f"Commit {commit_of(megatron)}: all with pipelines of 2 ranks or more.",
            "Settings are means over the files that are predicted.",
        ]
        title = "Megatron-LM's functional tests"
        target = "at least 80 % are predicted"
        found += table_of(title, target, list(functional_tests(megatron)), remarks)
    if bridge:
        remarks = [
            f"Commit {commit_of(bridge)}: all functions named `..._pretrain_...`.",
            "Settings are means over the recipes that are predicted.",
        ]
        target = "at least 30 are predicted"
        found += table_of("Megatron-Bridge's recipes", target, list(recipes(bridge)), remarks)
    if not found:
        raise SystemExit("BFPP_MEGATRON_LM or BFPP_MEGATRON_BRIDGE must name a checkout")
    return found
