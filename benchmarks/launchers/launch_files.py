"""Launch files of other projects: how many are predicted, and what is left out.

Checkouts of Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed and NeMo-Framework-Launcher are given
by BFPP_MEGATRON_LM, BFPP_MEGATRON_BRIDGE, BFPP_MEGATRON_DEEPSPEED and BFPP_NEMO_LAUNCHER; nothing
in them is run.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.helpers.measure import Results
from bfpp.api.predictions import predict
from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.schedules import InvalidInput

TESTS = Path("tests/functional_tests/test_cases")
RECIPES = Path("src/megatron/bridge/recipes")
EXAMPLES, CONFIGURATIONS = Path("examples_deepspeed"), Path("launcher_scripts/conf/training")

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
        reason = str(refused).rpartition(f"{name}: ")[2]
        return Outcome(group, None, reason.replace(name, Path(name).name))
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


def deepspeed_scripts(root: Path) -> Iterator[Outcome]:
    """The scripts of examples that name DeepSpeed's JSON, by folder."""
    for path in sorted(root.joinpath(EXAMPLES).rglob("*.sh")):
        if "deepspeed_config" in path.read_text(encoding="utf-8"):
            place = path.relative_to(root / EXAMPLES)
            yield outcome_of(place.parts[0] if len(place.parts) > 1 else ".", str(path))


def nemo_configurations(root: Path) -> Iterator[Outcome]:
    """The configurations with a degree of tensor parallelism, by model."""
    for path in sorted(root.joinpath(CONFIGURATIONS).rglob("*.yaml")):
        if "tensor_model_parallel_size" in path.read_text(encoding="utf-8"):
            yield outcome_of(path.relative_to(root / CONFIGURATIONS).parts[0], str(path))


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


class Kind(NamedTuple):
    """Launch files of a project: the variable that names its checkout, and which are read."""

    variable: str
    title: str
    target: str
    which: str
    outcomes: Callable[[Path], Iterator[Outcome]]
    least: int = 1
    """Files in which a setting is, of those that are listed."""


def table_of(kind: Kind, outcomes: list[Outcome], remarks: Iterable[str]) -> list[Results]:
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
        Results(kind.title, kind.target, [*rows, _row("all", outcomes)], [*remarks]),
        Results(
            f"{kind.title}: not predicted",
            "none",
            [{"number": str(count), "reason": reason} for reason, count in reasons.most_common()],
        ),
        Results(
            f"{kind.title}: settings that may matter",
            "none",
            [
                {"number": str(count), "setting": name, "left out, or taken otherwise": reason}
                for (name, reason), count in left_out.most_common()
                if count >= kind.least
            ],
        ),
    ]


KINDS = (
    Kind(
        "BFPP_MEGATRON_LM",
        "Megatron-LM's functional tests",
        "at least 80 % are predicted",
        "all with pipelines of 2 ranks or more",
        functional_tests,
    ),
    Kind(
        "BFPP_MEGATRON_BRIDGE",
        "Megatron-Bridge's recipes",
        "at least 30 are predicted",
        "all functions named `..._pretrain_...`",
        recipes,
    ),
    Kind(
        "BFPP_MEGATRON_DEEPSPEED",
        "Megatron-DeepSpeed's examples",
        "at least 80 % are predicted",
        "all scripts that name DeepSpeed's JSON",
        deepspeed_scripts,
        least=3,
    ),
    Kind(
        "BFPP_NEMO_LAUNCHER",
        "NeMo-Framework-Launcher's training configurations",
        "all of models of text without encoders are predicted",
        "all with a degree of tensor parallelism",
        nemo_configurations,
        least=10,
    ),
)


def run() -> list[Results]:
    found: list[Results] = []
    for kind in KINDS:
        if (root := checkout(kind.variable)) is None:
            continue
        remarks = [
            f"Commit {commit_of(root)}: {kind.which}.",
            "Settings are means over the files that are predicted.",
        ]
        if kind.least > 1:
            remarks.append(f"Of settings that may matter, those of {kind.least} files or more.")
        found += table_of(kind, list(kind.outcomes(root)), remarks)
    if not found:
        names = [kind.variable for kind in KINDS]
        raise SystemExit(f"{', '.join(names[:-1])} or {names[-1]} must name a checkout")
    return found
