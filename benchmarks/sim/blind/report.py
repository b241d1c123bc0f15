"""Errors of runs that were predicted before their results were read: tables of docs/accuracy.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.helpers.measure import Results
from benchmarks.sim.blind import maxtext
from benchmarks.sim.blind.runs import MLPERF, table

TITLES = {
    MLPERF: "MLPerf Training 5.1, Llama 3.1",
    "dgxc-llama": "DGX Cloud, Llama 3.1 405B",
    "dgxc-nemotron": "DGX Cloud, Nemotron-4 340B",
    "automodel": "NeMo AutoModel",
    maxtext.SOURCE: "MaxText, TPU v5e",
}

BLIND = (
    "Predicted on 2026-11-27 by the presets of that day, in a commit before the one with the "
    "results. A script takes the configurations out of logs and pages, and reads nothing of a "
    "result (`benchmarks/sim/blind`). Nothing is fitted to them."
)

SEEN = (
    "Of Nemotron's page, days to train on 10^12 tokens were seen when its form was looked at, "
    "before it was predicted; no constant was changed."
)

MISREAD = (
    "The results of 512 GPUs on Llama's page were first read from its table of H100, which put "
    "these two runs 55 % and 59 % off; the reader was mended, no prediction was."
)

OTHERS = (
    "MI350X, MI355X and TPU v5e are predicted by presets from data sheets and kernels alone. On "
    "TPU v5e, a quarter of what is predicted is kernels beside GEMMs, as of software for GPUs; "
    "measured steps reach up to 81 % of the peak, recomputation included, and leave them little."
)

FIRST = (
    "MaxText's runs were first predicted with eight micro-batches, a default where the table left "
    "a one out; they were predicted again before their results were read."
)

OPEN = (
    "Eight submissions of MLPerf's are left out, as their files leave open which settings ran, and "
    "runs of AutoModel's whose models have no preset."
)

NOT_UNDERSTOOD = "not understood"

KERNELS = (
    "predicted with torchtitan's kernels, and the checkpointing of the project's examples; its "
    "page says Transformer Engine's: with these, and without checkpointing, {error} %"
)

REASONS = {
    maxtext.SOURCE: "XLA fuses what is predicted as kernels of their own",
    "Nebius/nebius_b200_n1/llama31_8b": "its settings say FP8; it takes what seven with NVFP4 take",
    "automodel/deepseek-v3/bf16/256/512": KERNELS.format(error=-2),
    "automodel/qwen3-30b-a3b/bf16/8/512": KERNELS.format(error=-13),
    "automodel/llama3-70b/bf16/64/128": KERNELS.format(error=-13),
    "automodel/gpt-oss-120b/bf16/64/512": KERNELS.format(error=+19),
}
"""Why runs are outside of their intervals, as far as it is understood."""


@dataclass(frozen=True)
class Run:
    """A run of the frozen set: what was predicted of it, and measured."""

    name: str
    cluster: str
    seconds: float
    low: float
    high: float
    measured: float

    @property
    def source(self) -> str:
        first = self.name.partition("/")[0]
        return first if first in TITLES else MLPERF

    @property
    def error(self) -> float:
        """In per cent of what was measured; positive if predicted too slow."""
        return 100 * (self.seconds / self.measured - 1)

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high


def runs() -> list[Run]:
    """The frozen set, joined by the names of its runs."""
    predicted = {row["run"]: row for row in table("predicted")}
    measured = {row["run"]: float(row["step_seconds"]) for row in table("measured")}
    found = []
    for row in table("configurations"):
        name = row["run"]
        times = (float(predicted[name][key]) for key in ("step_seconds", "low", "high"))
        found.append(Run(name, row["cluster"], *times, measured[name]))
    return found


def blind() -> list[Results]:
    known = runs()
    by_source = _grouped(known, lambda run: TITLES[run.source])
    errors = [fmean(abs(run.error) for run in each) for each in by_source.values()]
    inside = fmean(run.is_inside for run in known)
    return [
        Results(
            "Accuracy of predicted step times",
            "unseen: 8 % over sources, 15 % of any machine, 70 % to 90 % of the runs inside",
            [_row("source", name, each) for name, each in by_source.items()],
            [
                (
                    f"Unseen runs, mean over sources: {fmean(errors):.1f} %; of all runs "
                    f"{fmean(abs(run.error) for run in known):.1f} %, and {inside:.0%} inside."
                ),
                BLIND,
                SEEN,
                MISREAD,
                OTHERS,
                FIRST,
                OPEN,
            ],
        ),
        Results(
            "Unseen runs by system",
            "15 % of any, and half of its runs inside",
            [
                _row("system", name, each)
                for name, each in _grouped(known, lambda run: run.cluster).items()
            ],
        ),
        Results(
            "Unseen runs outside of their intervals",
            "a reason for each",
            [
                {
                    "run": run.name,
                    "measured (s)": f"{run.measured:.4g}",
                    "predicted (s)": f"{run.seconds:.4g}",
                    "error (%)": f"{run.error:+.1f}",
                    "reason": REASONS.get(run.name) or REASONS.get(run.source, NOT_UNDERSTOOD),
                }
                for run in known
                if not run.is_inside
            ],
        ),
    ]


def _grouped(known: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in known:
        found[key(run)].append(run)
    return dict(found)


def _row(column: str, name: str, each: Sequence[Run]) -> dict[str, object]:
    errors = [run.error for run in each]
    return {
        column: name,
        "runs": len(each),
        "mean error (%)": f"{fmean(map(abs, errors)):.1f}",
        "bias": f"{fmean(errors):+.1f}",
        "largest": f"{max(errors, key=abs):+.1f}",
        "inside (%)": f"{100 * fmean(run.is_inside for run in each):.0f}",
    }
