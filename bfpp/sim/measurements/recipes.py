"""NVIDIA's published training recipes, as experiments, with the throughput that they reached.

What is published of each is a row of `nvidia-2026.csv` in `bfpp/sim/measurements/recipes`; what is
not is in `assumed.toml` there, by model and system.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.measurements.published import FOLDER
from bfpp.sim.presets.files import preset_names, read_toml

RECIPES = FOLDER / "recipes"

CONDITIONS = ("since", "systems", "precisions", "fsdp", "tp")
"""Keys that say which recipes settings apply to."""

WITHOUT_PREDICTION = "w/o MTP"
DROPPING = "tokendrop"


@cache
def _assumed() -> Mapping[str, Any]:
    return read_toml("table", RECIPES / "assumed.toml")


@dataclass(frozen=True)
class Recipe:
    """One published recipe: the facts of its row."""

    release: str
    system: str
    model: str
    gpus: int
    precision: str
    batch: int
    microbatch_size: int
    seq_length: int
    fsdp: bool
    tp: int
    pp: int
    cp: int
    loops: int
    ep: int
    tokens_per_second_per_gpu: float
    mamba: bool

    @property
    def family(self) -> str:
        """The model without its training settings."""
        return self.model.partition(" (")[0]

    @property
    def step_seconds(self) -> float:
        """The measured step time."""
        return self.batch * self.seq_length / self.gpus / self.tokens_per_second_per_gpu

    @property
    def refusal(self) -> str | None:
        """Why it cannot be said, if so."""
        if self.mamba:
            return f"{self.model} has Mamba layers"
        cluster = _assumed()["systems"][self.system]
        return None if cluster in preset_names("cluster") else f"there is no cluster {cluster}"

    @property
    def name(self) -> str:
        """Name of its file, except for the ending."""
        model = self.model.translate(str.maketrans({" ": "-", "_": "-", **dict.fromkeys("()/")}))
        sizes = f"{self.gpus}-gpus", f"batch-{self.batch}"
        parts = (model, self.system, self.precision, *sizes, self.release)
        return "-".join(parts).lower()

    @property
    def published(self) -> dict[str, Any]:
        """Values of the experiment that are published, or follow from published ones."""
        assumed = _assumed()
        dp = self.gpus // (self.tp * self.pp * self.cp)
        values = {
            "schedule": "interleaved" if self.loops > 1 else "1f1b",
            "model": assumed["models"][self.family]["model"],
            "seq_length": self.seq_length,
            "cluster": assumed["systems"][self.system],
            "precision": assumed["precisions"][self.precision],
            "pp": self.pp,
            "dp": dp,
            "microbatch_size": self.microbatch_size,
            "microbatches": self.batch // (dp * self.microbatch_size),
            "sharding": "fsdp" if self.fsdp else "zero1",
        }
        if WITHOUT_PREDICTION in self.model:
            values["prediction"] = False
        sizes = {"tp": self.tp, "cp": self.cp, "ep": self.ep, "loops": self.loops}
        return values | {name: size for name, size in sizes.items() if size > 1}

    @property
    def assumed(self) -> dict[str, Any]:
        """Values that are not published."""
        known = _assumed()
        values = dict(known["all"])
        if self.precision != "BF16":
            values |= known["narrow"]
        if self.ep > 1:
            values |= known["experts"]
        if DROPPING in self.model:
            values |= known[DROPPING]
        stages = str(self.pp * self.loops)
        if cut := known["cuts"].get(self.family, {}).get(stages):
            values["cut"] = cut
        for settings in known["models"][self.family]["settings"]:
            if self._meets(settings):
                values |= {key: it for key, it in settings.items() if key not in CONDITIONS}
        return {name: value for name, value in values.items() if value is not False}

    def _meets(self, settings: Mapping[str, Any]) -> bool:
        """True if settings apply to its release, system, precision, sharding and groups."""
        return (
            settings.get("since", "") <= self.release
            and self.system in settings.get("systems", [self.system])
            and self.precision in settings.get("precisions", [self.precision])
            and self.fsdp == settings.get("fsdp", self.fsdp)
            and (self.tp > 1) == settings.get("tp", self.tp > 1)
        )

    @property
    def experiment(self) -> Experiment:
        """Its training step; raises `InvalidConfiguration` for values without a counterpart."""
        if self.refusal is not None:
            raise InvalidConfiguration("recipe", self.refusal)
        return experiment_of({**self.published, **self.assumed})

    @property
    def text(self) -> str:
        """The recipe as an experiment file, with published and assumed values kept apart."""
        published, assumed = (
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
            for values in (self.published, self.assumed)
        )
        return (
            f"# {self.model} on {self.gpus} GPUs of {self.system}, {self.precision}, batch "
            f"{self.batch}, as of release {self.release}:\n"
            f"# {self.tokens_per_second_per_gpu:g} tokens/s per GPU ({_assumed()['source']}).\n"
            f'format = "bfpp experiment 1"\n{published}\n'
            "# Not published there, but assumed (bfpp/sim/measurements/recipes/assumed.toml):\n"
            f"{assumed}"
        )


def recipes() -> Iterator[Recipe]:
    """The published recipes, the newest first."""
    with (RECIPES / "nvidia-2026.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kinds = {each.name: str(each.type) for each in fields(Recipe)}
            yield Recipe(**{name: _READ[kind](row[name]) for name, kind in kinds.items()})


_READ: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": bool}
