"""Configurations of MLPerf Training's submissions, from their logs' heads and launch settings.

A submission is a folder of logs of one system; what its logs do not say (groups, precision,
schedule) is in one of the organisation's files of settings, `config_*.sh`, which are read and
never run. Which one: a readme of the system names it, or it alone has the system's devices, batch
and accumulation. Submissions that this leaves open are listed with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.sim.blind.logs import LOGS, Configuration, configuration
from bfpp.launchers.sources.shell import read_script

MODELS = {"llama31_405b": "llama3-405b", "llama31_8b": "llama3-8b"}

CLUSTERS = {
    "GB300": "gb300-nvl72",
    "GB200": "gb200-nvl72",
    "B300": "dgx-b300",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "MI355X": "mi355x",
    "MI350X": "mi350x",
    "MI325X": "mi325x",
    "MI300X": "mi300x",
}
"""Clusters by the accelerator's name; the first that a name holds counts."""

SEQUENCE = 8192
"""Tokens of a sample in both pre-training benchmarks."""

GRAPHS = ("MCORE_CUDA_GRAPH", "LAYER_CUDA_GRAPH", "FULL_CUDA_GRAPH")

SOURCED = re.compile(r"^source \$\(dirname \$\{BASH_SOURCE\[0\]\}\)/(\S+)$", re.MULTILINE)
NAMED = re.compile(r"config_\w[\w.-]*\.sh")


class Open(Exception):
    """Says why a submission's settings are not known."""


@dataclass(frozen=True)
class Settings:
    """A file of settings of an organisation: the values that its variables have at its end."""

    path: Path
    benchmarks: Path

    @cached_property
    def variables(self) -> Mapping[str, str]:
        found = read_script(self.path.name, self._text([self.path])).variables
        return {name: value for name, value in found.items() if isinstance(value, str)}

    def _text(self, paths: Sequence[Path]) -> str:
        """The first of some files, with those that it sources in their places.

        A file that is not beside the one that sources it is another folder's, or was not submitted.
        """
        if not paths:
            return ""

        def sourced(match: re.Match[str]) -> str:
            beside, others = paths[0].parent / match[1], sorted(self.benchmarks.rglob(match[1]))
            return self._text([beside] if beside.exists() else others)

        return SOURCED.sub(sourced, paths[0].read_text(encoding="utf-8"))

    def number(self, default: int, *names: str) -> int:
        """The first variable that is set to a number, or the default."""
        for name in names:
            if (text := self.variables.get(name, "null")) not in ("", "null"):
                return int(text)
        return default

    def on(self, name: str, default: bool = False) -> bool:
        return self.variables.get(name, str(default)) in ("True", "1", "true")

    @property
    def devices(self) -> int:
        nodes = self.number(1, "DGXNNODES", "NNODES")
        return nodes * self.number(8, "DGXNGPU", "GPUS_PER_NODE")

    @property
    def batch(self) -> int:
        """Samples of a step: NVIDIA's settings say those of a replica, AMD's those of all."""
        return self.number(self.number(1, "MINIBS") * self.replicas, "GBS")

    @property
    def degrees(self) -> dict[str, int]:
        return {
            "pp": self.number(1, "PIPELINE_MODEL_PARALLEL", "PP"),
            "tp": self.number(1, "TENSOR_MODEL_PARALLEL", "TP"),
            "cp": self.number(1, "CONTEXT_PARALLEL", "CP"),
        }

    @property
    def replicas(self) -> int:
        pp, tp, cp = self.degrees.values()
        return self.devices // (pp * tp * cp)

    @property
    def microbatches(self) -> int:
        return self.batch // (self.replicas * self.microbatch_size)

    @property
    def microbatch_size(self) -> int:
        return self.number(1, "MICRO_BATCH_SIZE", "MBS")

    @property
    def experiment(self) -> dict[str, Any]:
        """Values of an experiment: NVIDIA's NeMo's and AMD's settings say them alike."""
        amd = "GPUS_PER_NODE" in self.variables
        degrees = self.degrees
        loops = self.number(1, "INTERLEAVED_PIPELINE") if degrees["pp"] > 1 else 1
        values: dict[str, Any] = {
            "schedule": "interleaved" if loops > 1 else "1f1b",
            **degrees,
            "dp": self.replicas,
            "loops": loops,
            "microbatch_size": self.microbatch_size,
            "microbatches": self.microbatches,
            "sharding": "zero1",
            "precision": "fp8-delayed" if amd else self._precision,
            "quantised_weights": self.on("FP8_PARAMS" if amd else "FP8_PARAM_GATHER"),
            "quantised_attention": self.on("FP8_DPA"),
            "main_gradients": "bf16",
            "sequence_parallel": degrees["tp"] > 1 and self.on("SEQ_PARALLEL", default=True),
            "tp_overlap": "chunked" if self.on("TP_COMM_OVERLAP") and degrees["tp"] > 1 else "none",
            "cuda_graphs": any(map(self.on, GRAPHS)),
            "cut": "fewer-at-ends" if self.on("ASYM_PP_EMBED") and self.on("ASYM_PP_LOSS") else "",
        }
        return {name: value for name, value in values.items() if value not in (False, "", None)}

    @property
    def _precision(self) -> str:
        if self.on("FP4"):
            return "nvfp4"
        if not self.on("FP8"):
            return "bf16"
        recipe = self.variables.get("FP8_RECIPE", "tensorwise")
        return {"tensorwise": "fp8-current", "delayed": "fp8-delayed", "mxfp8": "mxfp8"}[recipe]


@dataclass(frozen=True)
class Submission:
    """A system's logs of one benchmark."""

    folder: Path
    organisation: str
    system: str
    benchmark: str

    @property
    def name(self) -> str:
        return f"{self.organisation}/{self.system}/{self.benchmark}"

    @property
    def logs(self) -> list[Path]:
        results = self.folder / self.organisation / "results" / self.system / self.benchmark
        return sorted(results.glob(LOGS))

    @property
    def head(self) -> Configuration:
        return configuration(self.logs[0].read_text(encoding="utf-8").splitlines())

    @cached_property
    def description(self) -> Mapping[str, Any]:
        path = self.folder / self.organisation / "systems" / f"{self.system}.json"
        if not path.exists():
            raise Open("no description of its system")
        return json.loads(path.read_text(encoding="utf-8"))

    @property
    def devices(self) -> int:
        return int(self.description["number_of_nodes"]) * int(
            self.description["accelerators_per_node"]
        )

    @property
    def accelerator(self) -> str:
        name = self.description["accelerator_model_name"]
        for each in CLUSTERS:
            if each in name:
                return each
        raise Open(f"no cluster has {name}")

    @cached_property
    def settings(self) -> Settings:
        """Its settings; raises `Open` where they are not known."""
        benchmarks = self.folder / self.organisation / "benchmarks"
        readmes = [*benchmarks.rglob(f"README-{self.system}.md")]
        named = {name for each in readmes for name in NAMED.findall(each.read_text())}
        fitting: dict[str, Settings] = {}
        for path in sorted(benchmarks.rglob("config_*.sh")):
            settings = Settings(path, benchmarks)
            if not {"MINIBS", "GBS"} & settings.variables.keys():
                continue
            if named and path.name not in named:
                continue
            if self._fits(settings):
                fitting.setdefault(json.dumps(settings.experiment), settings)
        found = [*fitting.values()]
        for mark in (self.system, rf"(?<!G){self.accelerator}"):
            found = [each for each in found if re.search(mark, each.path.name)] or found
        if len(found) != 1:
            which = ", ".join(sorted({each.path.name for each in found})) or "none"
            raise Open(f"settings of its devices and batch: {which}")
        return found[0]

    def _fits(self, settings: Settings) -> bool:
        head = self.head
        size = settings.variables.get("MODEL_SIZE", settings.variables.get("SIZE", ""))
        accumulation = head.accumulation in (None, settings.microbatches)
        return (
            self.benchmark.endswith(f"_{size}")
            and (settings.devices, settings.batch) == (self.devices, head.batch)
            and accumulation
        )

    @property
    def row(self) -> dict[str, Any]:
        """Values of its experiment; raises `Open` where they are not known."""
        return {
            "run": self.name,
            "model": MODELS[self.benchmark],
            "seq_length": SEQUENCE,
            "cluster": CLUSTERS[self.accelerator],
            "implementation": "current",
            **self.settings.experiment,
        }


def submissions(folder: Path) -> Iterator[Submission]:
    """The submissions of language models that are trained from scratch, by name."""
    for path in sorted(folder.glob("*/results/*/*")):
        if path.name in MODELS and any(path.glob(LOGS)):
            organisation, _, system, benchmark = path.relative_to(folder).parts
            yield Submission(folder, organisation, system, benchmark)
