"""Small faults that the tests are tried on: each is valid Python, and another program."""

import ast

import pytest

from benchmarks.house import draws, mutations
from benchmarks.house.draws import Draw, mutants_in
from benchmarks.house.mutants import Mutant, mutants_of
from benchmarks.house.mutations import BUDGET, SPECIFIC, Executed
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


@pytest.fixture
def small(tmp_path):
    (tmp_path / "a.py").write_bytes(SOURCE)
    return mutants_of(tmp_path, "a.py")


def test_the_faults_of_a_small_file(small):
    found = {each.name.removeprefix("a.py ") for each in small}
    assert found == {each.replace("NAMES:", ":") for each in FAULTS}


@pytest.mark.parametrize(
    "path",
    ["bfpp/sim/cluster/nccl.py", "bfpp/traces/figures/svg/elements.py", "bfpp/api/results.py"],
)
def test_each_fault_is_another_program(path):
    source = (ROOT / path).read_bytes()
    mutants = mutants_of(ROOT, path)
    assert len(mutants) > 50
    before = ast.dump(ast.parse(source))
    assert all(ast.dump(ast.parse(each.applied(source))) != before for each in mutants)


def test_a_file_that_has_changed_is_not_mistaken(small):
    mutant = next(each for each in small if each.before == "2.5")
    with pytest.raises(ValueError, match=r"a\.py:10 has changed"):
        mutant.applied(SOURCE.replace(b"Count.", b"Adds up."))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "BUILD", tmp_path / "build")
    return Draw("bfpp/traces", 5, 1)


def test_what_was_drawn_stays_with_what_came_of_it(kept):
    one, two, *_ = names = list(kept.verdicts)
    assert (
        names
        == list(Draw("bfpp/traces", 5, 1).verdicts)
        != list(Draw("bfpp/traces", 5, 2).verdicts)
    )
    kept.add(one, "survived")
    kept.add(two, "killed")
    kept.add(one, "killed")
    again = Draw("bfpp/traces", 5, 3)
    again.file.write_text(kept.file.read_text())
    of_two = {one: ["survived", "killed"], two: ["killed"]}
    assert again.verdicts == kept.verdicts == {name: of_two.get(name, []) for name in names}
    assert again.survivors == [each.name for each in again.untried] == names[2:]


def test_the_share_leaves_out_what_no_test_decides(kept, monkeypatch):
    one, two, three, four, five = kept.verdicts
    monkeypatch.setattr(draws, "undecidable", lambda: {five: "the same"})
    for name, each in [(one, "killed"), (two, "survived"), (two, "killed"), (three, "unseen")]:
        kept.add(name, each)
    assert kept.survivors == [three, four]
    assert kept.row == {
        "package": "bfpp/traces",
        "faults": 5,
        "undecidable": 1,
        "killed at first": 1,
        "killed": 2,
        "survived": 2,
        "killed of decidable": "50%",
    }


def test_a_table_of_what_is_known_tries_nothing_again(kept, monkeypatch):
    monkeypatch.setattr(mutations, "PACKAGES", [kept.package])
    monkeypatch.setattr(mutations, "executed", None)
    one, *others = kept.verdicts
    monkeypatch.setattr(draws, "undecidable", lambda: {one: "the same"})
    for name in others:
        kept.add(name, "killed")
    table = mutations.results("Faults", kept.count, kept.seed)
    assert table.rows == [kept.row]
    assert table.remarks[0].startswith("5 of each package's faults, ")
    assert any(each.startswith("4 of 4 were killed when tried first") for each in table.remarks)
    assert not any(each.startswith("Survived") for each in table.remarks)


def test_a_package_has_its_own_faults_alone():
    of_front = {each.path for each in mutants_in("bfpp").values()}
    assert "bfpp/command_line.py" in of_front
    assert not any(each.startswith(("bfpp/traces/", "bfpp/sim/")) for each in of_front)
    assert all(each.path.startswith("bfpp/traces/") for each in mutants_in("bfpp/traces").values())


def test_what_no_test_decides_has_a_reason():
    assert all(name.startswith("bfpp/") and " -> " in name for name in draws.undecidable())
    assert all(len(reason.split()) > 5 for reason in draws.undecidable().values())


MUTANT = Mutant("a.py", "f", range(3, 5), 0, "", "")


def attempts(lines, seconds=None, mutant=MUTANT):
    names = {test for tests in lines.values() for test in tests}
    return Executed(dict.fromkeys(names, 0.5) | (seconds or {}), {"a.py": lines}).attempts(mutant)


def test_the_most_specific_tests_of_a_line_come_first():
    lines = {1: ["wide", "other"], 2: ["wide"], 3: ["wide"], 4: ["near", "wide"]}
    assert attempts(lines) == [["near", "wide", "other"]]


def test_tests_of_a_module_see_what_is_outside_of_functions():
    outside = Mutant("a.py", "", range(1, 2), 0, "", "")
    assert attempts({7: ["one"], 8: ["one", "two"]}, mutant=outside) == [["two", "one"]]


def test_no_fault_takes_more_than_its_budget():
    many = [f"test {number:03}" for number in range(3 * SPECIFIC)]
    first, rest = attempts({3: [*many, "long"]}, {"long": BUDGET + 1} | dict.fromkeys(many, 1.0))
    assert len(first) == SPECIFIC
    assert len(first) + len(rest) == BUDGET
    assert "long" not in first + rest
