"""Faults that were drawn of a package, what came of each since, and which no test could decide.

They are kept in build/mutations by name, whatever line they move to: a draw stays what it was while
tests are written for what survived.
"""

from __future__ import annotations

import json
import random
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from benchmarks.helpers.measure import ROOT
from benchmarks.house.mutants import Mutant, mutants_of

PACKAGES = ("bfpp", "bfpp/schedules", "bfpp/traces", "bfpp/sim", "bfpp/executor")
"""The front door, and the four that stand apart from it."""

BUILD = ROOT / "build" / "mutations"
UNDECIDABLE = Path(__file__).parent / "undecidable.toml"
KILLED = "killed"


@cache
def undecidable() -> Mapping[str, str]:
    """Faults that no test could decide, each with the reason."""
    return tomllib.loads(UNDECIDABLE.read_text())


@cache
def mutants_in(package: str) -> Mapping[str, Mutant]:
    """Every fault that a package can have, by name; of the front door, where no other one is."""
    apart = [f":!{each}/*" for each in PACKAGES if each.startswith(f"{package}/")]
    command = ["git", "ls-files", f"{package}/*.py", *apart]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = listed.stdout.split()
    return {each.name: each for path in files for each in mutants_of(ROOT, path)}


@dataclass(frozen=True)
class Draw:
    """Some faults of a package, each as likely as any other."""

    package: str
    count: int
    seed: int

    @property
    def file(self) -> Path:
        """Where they are kept, with what came of them."""
        return BUILD / f"{self.package.replace('/', '.')}-{self.count}-{self.seed}.json"

    @cached_property
    def verdicts(self) -> dict[str, list[str]]:
        """By fault, what came of it each time that it was tried."""
        if self.file.exists():
            kept: dict[str, list[str]] = json.loads(self.file.read_text())
            return kept
        names = random.Random(self.seed).sample(list(mutants_in(self.package)), self.count)
        return {name: [] for name in names}

    def add(self, name: str, verdict: str) -> None:
        """Keep what came of a fault."""
        self.verdicts[name].append(verdict)
        BUILD.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.verdicts, indent=1) + "\n")

    @property
    def decidable(self) -> dict[str, list[str]]:
        """What came of the faults that a test can decide."""
        return {name: each for name, each in self.verdicts.items() if name not in undecidable()}

    @property
    def survivors(self) -> list[str]:
        """Decidable faults that no test has noticed."""
        return [name for name, each in self.decidable.items() if KILLED not in each]

    @property
    def untried(self) -> list[Mutant]:
        """The same to try, as far as what they change is still there."""
        there = mutants_in(self.package)
        return [there[name] for name in self.survivors if name in there]

    @property
    def killed_at_first(self) -> int:
        """Decidable faults that were noticed when they were tried first."""
        return sum(each[:1] == [KILLED] for each in self.decidable.values())

    @property
    def row(self) -> dict[str, object]:
        """How many were killed, when they were tried first and since."""
        decidable, survived = len(self.decidable), len(self.survivors)
        return {
            "package": self.package,
            "faults": len(self.verdicts),
            "undecidable": len(self.verdicts) - decidable,
            "killed at first": self.killed_at_first,
            "killed": decidable - survived,
            "survived": survived,
            "killed of decidable": f"{(decidable - survived) / max(decidable, 1):.0%}",
        }
