"""Errors of step times of NVIDIA's published recipes, to which nothing is fitted.

`python -m benchmarks.sim.recipes` writes those that can be said to `examples/recipes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.helpers.measure import ROOT, Results
from benchmarks.sim.families import Family, families
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.prediction import StepPrediction, predict
from bfpp.sim.measurements.recipes import Recipe, recipes

FOLDER = ROOT / "examples" / "recipes"


class Run(NamedTuple):
    """A recipe, and what is predicted of it."""

    recipe: Recipe
    predicted: StepPrediction

    @property
    def error(self) -> float:
        """Error of the predicted step time, in per cent."""
        measured = self.recipe.tokens_per_second_per_gpu
        return 100 * (measured / self.predicted["tokens_per_second_per_gpu"] - 1)


COMMAND = (
    "Predicted as `bfpp simulate examples/recipes/RECIPE.toml` does it, with the shipped "
    "presets; so are the errors that are not fitted in the table of families."
)

FITTED = (
    "Left out: fitted, with priors, to recipes of all other models: factors for all systems, "
    "and for each system one of the share of the peak that its GEMMs reach. No preset has "
    "them: they say what better constants would give. A cluster's file that is `like` the "
    "preset, with its `launch_seconds`, `host_seconds`, `format_efficiencies` and "
    "`matmul_efficiency` times these, does."
)


def run() -> list[Results]:
    every = list(recipes())
    runs = [run_of(each) for each in every if each.refusal is None]
    refused = Counter(each.refusal for each in every if each.refusal)
    summary = Results(
        "Published recipes",
        "at most 12 %",
        [row for title, key in KEYS.items() for row in _means(title, key, runs)],
        [
            COMMAND,
            "What is assumed stands in `bfpp/sim/measurements/recipes/assumed.toml`.",
            *(f"{count} not predicted: {reason}." for reason, count in refused.items()),
        ],
    )
    left_out = list(families())
    return [
        summary,
        Results(
            "A family of models left out",
            "at most 12 %",
            _of_families(left_out),
            [
                FITTED,
                *map(_factors, left_out),
            ],
        ),
        Results("Each recipe", "none", [_row(each) for each in runs]),
    ]


FIRST = frozenset({"DeepSeekV3", "GPT OSS 120B", "LLAMA3.1_405B", "Qwen3_30B_a3B"})
"""Models whose recipes were looked at first; those of others were predicted before that."""


def _group(recipe: Recipe) -> str:
    return "first four models" if recipe.family in FIRST else "later models"


KEYS: dict[str, Callable[[Run], str]] = {
    "all": lambda _: "",
    "of": lambda run: _group(run.recipe),
    "model": lambda run: run.recipe.family,
    "system": lambda run: run.recipe.system,
    "precision": lambda run: run.recipe.published["precision"],
    "release": lambda run: run.recipe.release,
}
"""Columns that errors are listed by."""


def _of_families(left_out: Sequence[Family]) -> list[dict[str, Any]]:
    """Errors without what is fitted and with it: of all, and by model, system and precision."""
    rows = {
        recipe: (family.unfitted[recipe], error)
        for family in left_out
        for recipe, error in family.errors.items()
    }
    parts: dict[tuple[str, str, str], list[Recipe]] = {("all", "", ""): [*rows]}
    for recipe in sorted(rows, key=_part):
        parts.setdefault((f"all of {_group(recipe)}", "", ""), []).append(recipe)
        parts.setdefault((recipe.family, "", ""), []).append(recipe)
        parts.setdefault(_part(recipe), []).append(recipe)
    found = []
    for (model, system, precision), inside in sorted(parts.items(), key=lambda each: each[0]):
        errors = np.array([rows[each] for each in inside])
        means = np.abs(errors).mean(axis=0)
        found.append(
            {
                "model": model,
                "system": system,
                "precision": precision,
                "runs": len(inside),
                "not fitted": f"{means[0]:.1f} %",
                "left out": f"{means[1]:.1f} %",
                "mean": f"{errors[:, 1].mean():+.1f} %",
            }
        )
    return found


def _part(recipe: Recipe) -> tuple[str, str, str]:
    return recipe.family, recipe.system, recipe.published["precision"]


def _factors(family: Family) -> str:
    factors = ", ".join(f"{name} {value:.2f}" for name, value in family.factors.items())
    return f"Without {family.name}: {factors}."


def run_of(recipe: Recipe) -> Run:
    experiment = recipe.experiment
    physical = experiment.require_physical()
    return Run(recipe, predict(simulate(experiment.graph(), physical), physical))


def _means(title: str, key: Callable[[Run], str], runs: Sequence[Run]) -> list[dict[str, Any]]:
    found = []
    for value in sorted({key(each) for each in runs}):
        errors = np.array([each.error for each in runs if key(each) == value])
        found.append(
            {
                "by": f"{title} {value}".strip(),
                "runs": len(errors),
                "mean error of the step time": f"{np.abs(errors).mean():.1f} %",
                "mean": f"{errors.mean():+.1f} %",
            }
        )
    return found


def _row(run: Run) -> dict[str, Any]:
    recipe, predicted = run
    return {
        "recipe": recipe.name,
        "layout": f"pp {recipe.pp}, tp {recipe.tp}, cp {recipe.cp}, ep {recipe.ep}",
        "tokens/s per GPU": f"{recipe.tokens_per_second_per_gpu:g}",
        "predicted": f"{predicted['tokens_per_second_per_gpu']:.0f}",
        "error of the step time": f"{run.error:+.1f} %",
        "GiB": f"{predicted['memory_reserved_gb']:.0f} of {predicted['device_memory_gb']:.0f}",
    }


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for each in recipes():
        if each.refusal is None:
            (FOLDER / f"{each.name}.toml").write_text(each.text, encoding="utf-8")


if __name__ == "__main__":
    write()
