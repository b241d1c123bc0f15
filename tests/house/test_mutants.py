"""Small faults that the tests are tried on: each is valid Python, and another program."""

import ast

import pytest

from benchmarks.house.mutants import drawn, mutants_of
from tests.helpers import ROOT

SOURCE = b'''"""What it is."""
from somewhere import thing

NAMES: tuple[str, ...] = ("one",)


class Counter:
    """Count."""

    def add(self, number: int = 1, *, most: float = 2.5) -> bool:
        """Add."""
        if number < most and self.total is not None:
            self.total += max(number, 0)
        self.log(number, level="info")
        return self.total == -3
'''

BOTH = "number < most and self.total is not None"
FAULTS = {
    "NAMES: \"one\" -> 'one_'",
    "Counter.add: 1 -> 2",
    "Counter.add: 2.5 -> 3.125",
    f"Counter.add: {BOTH} -> (not ({BOTH}))",
    f"Counter.add: {BOTH} -> (number < most or self.total is not None)",
    "Counter.add: number < most -> (number <= most)",
    "Counter.add: self.total is not None -> (self.total is None)",
    "Counter.add: self.total += max(number, 0) -> pass",
    "Counter.add: max(number, 0) -> (min(number, 0))",
    "Counter.add: 0 -> 1",
    'Counter.add: self.log(number, level="info") -> pass',
    'Counter.add: self.log(number, level="info") -> (self.log(number))',
    "Counter.add: \"info\" -> 'info_'",
    "Counter.add: self.total == -3 -> None",
    "Counter.add: self.total == -3 -> (self.total != -3)",
    "Counter.add: -3 -> 3",
    "Counter.add: 3 -> 4",
}


def test_the_faults_of_a_small_file():
    found = {each.name.removeprefix("a.py ") for each in mutants_of("a.py", SOURCE)}
    assert found == {each.replace("NAMES:", ":") for each in FAULTS}


@pytest.mark.parametrize(
    "path",
    ["bfpp/sim/cluster/nccl.py", "bfpp/traces/figures/svg/elements.py", "bfpp/api/results.py"],
)
def test_each_fault_is_another_program(path):
    source = (ROOT / path).read_bytes()
    mutants = mutants_of(path, source)
    assert len(mutants) > 50
    before = ast.dump(ast.parse(source))
    assert all(ast.dump(ast.parse(each.applied(source))) != before for each in mutants)


def test_faults_are_drawn_alike_from_one_seed():
    files = ["bfpp/sim/cluster/nccl.py", "bfpp/traces/figures/terminal.py"]
    one, again, other = (drawn(ROOT, files, 20, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_a_file_that_has_changed_is_not_mistaken():
    mutant = next(each for each in mutants_of("a.py", SOURCE) if each.before == "2.5")
    with pytest.raises(ValueError, match=r"a\.py:10 has changed"):
        mutant.applied(SOURCE.replace(b"Count.", b"Adds up."))
