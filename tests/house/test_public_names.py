"""Names that a user imports, and that others can register."""

from __future__ import annotations

import ast
import doctest
import json
import pickle
import re
from dataclasses import replace
from importlib import import_module, metadata
from importlib.metadata import EntryPoint

import pytest

import bfpp
from bfpp.schedules.families import gpipe, registry
from bfpp.schedules.formats.python_file import named_in
from tests.helpers import ROOT


def test_every_public_name_is_there_and_has_an_example():
    assert sorted(bfpp.__all__) == bfpp.__all__
    for name in bfpp.__all__:
        assert ">>> " in getattr(bfpp, name).__doc__, name


def test_packages_have_what_they_hand_on():
    """Where `__all__` is written out; the front door's is read from its stub."""
    files = [each for each in (ROOT / "bfpp").rglob("*.py") if "\n__all__ = [" in each.read_text()]
    assert len(files) > 5
    for file in files:
        bound, told = set(), []
        for node in ast.parse(file.read_text()).body:
            match node:
                case ast.ImportFrom():
                    bound |= {each.asname or each.name for each in node.names}
                case ast.FunctionDef() | ast.ClassDef():
                    bound.add(node.name)
                case ast.Assign(targets=[ast.Name(id="__all__")]):
                    told = ast.literal_eval(node.value)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(name)):
                    bound.add(name)
        package = ".".join(file.relative_to(ROOT).parent.parts)
        for name in {*told} - bound:  # which is loaded when it is asked for
            assert hasattr(import_module(package), name), file
        assert len({*told}) == len(told) > 0, file


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(
    "module", sorted({"bfpp", *(getattr(bfpp, name).__module__ for name in bfpp.__all__)})
)
def test_the_examples_are_true(module):
    assert not doctest.testmod(import_module(module)).failed


def test_notebooks_show_what_is_predicted():
    prediction = bfpp.predict(bfpp.Experiment("1f1b", pp=2, microbatches=2))
    explained = bfpp.explain(prediction.experiment)
    slower = bfpp.simulate(prediction.timeline.graph, bfpp.AbstractCosts(2))
    compared = bfpp.difference(slower, prediction.timeline)
    of_graph = (prediction, prediction.timeline, prediction.timeline.graph)
    for shown in (*of_graph, explained, compared):
        page = shown._repr_html_()
        assert page.count("<") == page.count(">") > 4
        assert len(repr(shown)) < 200
    assert "step time" in prediction._repr_html_()
    assert "<svg" in prediction.timeline._repr_html_()
    assert "bubble" in explained._repr_html_()
    assert "+33.3%" in compared._repr_html_()


def test_a_sweep_has_a_record_for_each_combination():
    base = bfpp.Experiment("1f1b", microbatches=6)
    records = bfpp.sweep(base, pp=[2, 3], schedule=["gpipe", "depth-first"], sequence=[3])
    assert [(each["pp"], each["schedule"]) for each in records] == [
        (2, "gpipe"), (2, "depth-first"), (3, "gpipe"), (3, "depth-first"),
    ]  # fmt: skip
    assert [("refused" in each) for each in records] == [True, False, True, False]
    alone = bfpp.predict(base.changed(pp=3, schedule="depth-first", sequence=3)).record
    assert records[3]["step_time"] == records[3].step_time == alone["step_time"]
    assert (
        records[1].experiment.record
        == base.changed(pp=2, schedule="depth-first", sequence=3).record
    )
    with pytest.raises(AttributeError, match="the row has no 'mfu'; it has schedule, "):
        records[1].mfu  # noqa: B018
    plain = json.loads(json.dumps(records))  # as pandas.DataFrame takes them
    assert plain == records


def test_a_search_finds_what_the_command_finds():
    small = replace(bfpp.load_model("bert-6.6b"), layers=4, name="small")
    records = bfpp.search(small, "dgx1-v100", 4, 4, schedules=["gpipe"])
    assert records == bfpp.search(small, "dgx1-v100", 4, 4, schedules=["gpipe"], workers=2)
    speeds = [each["tflops_per_gpu"] for each in records]
    assert speeds == sorted(speeds, reverse=True)
    values = {name: records[0][name] for name in ("pp", "tp", "dp", "microbatches", "sharding")}
    assert records == bfpp.search(
        small, "dgx1-v100", 4, [4], schedules=[bfpp.find_schedule("gpipe")]
    )
    best = bfpp.Experiment(
        "gpipe", model=small, cluster="dgx1-v100", microbatch_size=records[0]["microbatch_size"],
        units_per_stage=records[0]["units_per_stage"], **values,
    )  # fmt: skip
    assert bfpp.predict(best).record["step_time"] == records[0]["step_time"]
    assert {each.fits for each in records} == {True}


@pytest.mark.parametrize("more", [{}, {"gather_per": ["step"], "recompute": ["full", "1"]}])
def test_a_row_of_a_search_is_an_experiment_to_go_on_with(more):
    small = replace(bfpp.load_model("mixtral-8x22b"), layers=4, name="small")
    schedules = ["breadth-first", "depth-first", "1f1b", *([] if more else ["zb-h1"])]
    rows = bfpp.search(small, "dgx-h100", 4, 8, schedules=schedules, top=None, **more)
    assert {each.schedule for each in rows} == {*schedules}
    for row in rows[:: max(1, len(rows) // 24)]:
        assert bfpp.simulate(row.experiment).step_time == pytest.approx(row.step_time, rel=1e-12)


def test_rows_are_a_table_of_other_libraries():
    base = bfpp.Experiment("1f1b", model="bert-6.6b", cluster="dgx1-v100", tp=2)
    rows = bfpp.sweep(base, pp=[4, 8, 64])
    columns = rows.columns
    assert columns["pp"] == [4, 8, 64]
    assert columns["mfu"][:2] == [rows[0].mfu, rows[1].mfu]
    assert columns["memory_parts_gb.weights"][2] is None
    assert columns["refused"][:2] == [None, None]
    assert "64" in columns["refused"][2]
    assert pickle.loads(pickle.dumps(rows)) == rows
    page = rows._repr_html_()
    assert all(f"<td>{each}</td>" in page for each in ("pp", "mfu", "8", f"{rows[0].mfu:.4g}"))
    arrow = pytest.importorskip("pyarrow")
    assert arrow.RecordBatchReader.from_stream(rows).read_all().to_pydict() == columns
    pandas = pytest.importorskip("pandas")
    frame = rows.to_pandas()
    assert frame["step_time"].tolist()[:2] == [rows[0].step_time, rows[1].step_time]
    assert isinstance(frame, pandas.DataFrame)
    assert "fits" in dir(rows[0])


def test_rows_are_read_by_polars():
    polars = pytest.importorskip("polars")
    rows = bfpp.sweep(bfpp.Experiment("1f1b", microbatches=8), pp=[2, 4])
    for frame in (polars.DataFrame(rows), polars.from_dataframe(rows)):
        assert frame["step_time"].to_list() == [27.0, 33.0]


NUMBERS = ("step_time", "bubble", "mfu", "hfu", "memory_largest_gb", "memory_reserved_gb")


def test_a_prediction_has_its_numbers_as_attributes():
    base = bfpp.Experiment("gpipe", pp=4, microbatches=16, model="bert-6.6b", cluster="dgx1-v100")
    for tp, fits in ((1, False), (8, True)):
        prediction = bfpp.simulate(base.changed(tp=tp))
        record = prediction.record
        assert [getattr(prediction, name) for name in NUMBERS] == [record[name] for name in NUMBERS]
        assert prediction.fits == (not record["missing_gb"]) == fits
    with pytest.raises(bfpp.InvalidConfiguration, match="model: must be given, and a cluster"):
        bfpp.simulate(bfpp.Experiment("gpipe")).mfu  # noqa: B018
    with pytest.raises(bfpp.InvalidConfiguration, match="costs: must be given with a graph"):
        bfpp.simulate(bfpp.Experiment("gpipe").graph())


@pytest.mark.parametrize(
    ("gpus", "batch", "more", "name"),
    [
        (0, 4, {}, "gpus"),
        ("4", 4, {}, "gpus"),
        (4, 4.0, {}, "batch"),
        (4, [4, -1], {}, "batch"),
        (4, 4, {"cp": [0]}, "cp"),
    ],
)
def test_a_search_refuses_what_is_no_number(gpus, batch, more, name):
    with pytest.raises(bfpp.InvalidConfiguration, match=f"{name}: must be a whole number of at "):
        bfpp.search("bert-6.6b", "dgx1-v100", gpus, batch, **more)


def test_a_search_keeps_to_the_values_that_it_is_given():
    small = replace(bfpp.load_model("bert-6.6b"), layers=4)
    rows = bfpp.search(small, "dgx1-v100", 8, 16, tp=2, pp=(1, 2), sharding="zero3", top=None)
    found = {(row.experiment.tp, row.experiment.pp, str(row.experiment.sharding)) for row in rows}
    assert found == {(2, 1, "full"), (2, 2, "full")}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tpp": 2}, "tpp: is not searched; did you mean 'tp'"),
        ({"fixed": ()}, "fixed: is not searched"),
        ({"tp": [0]}, "tp: must be a whole number of at least 1, not 0"),
        ({"sharding": "ful"}, "sharding: 'ful' is not one of .* did you mean 'full'"),
    ],
)
def test_a_search_refuses_what_it_does_not_know(more, reason):
    with pytest.raises(bfpp.InvalidConfiguration, match=reason):
        bfpp.search("bert-6.6b", "dgx1-v100", 8, 16, **more)


@pytest.mark.torch
@pytest.mark.usefixtures("forked_processes")
def test_a_model_of_ones_own_is_trained_from_python():
    path = ROOT / "benchmarks" / "helpers" / "faulty_models.py"
    experiment = bfpp.Experiment("breadth-first", pp=2, loops=2, microbatches=4, dp=1)
    outcome = bfpp.train(f"{path}:regression", experiment, steps=2)
    assert [report.step for report in outcome.reports] == [0, 1]
    with pytest.raises(bfpp.InvalidConfiguration, match="must be in a Python file"):
        bfpp.train(eval("lambda seed: None"), experiment, steps=1)
    with pytest.raises(bfpp.InvalidConfiguration, match="cp: can be simulated"):
        bfpp.train(f"{path}:regression", experiment.changed(cp=2), steps=1)


TRAINS_AT_ONCE = """
import bfpp

def mine(seed):
    raise NotImplementedError

bfpp.train(mine, bfpp.Experiment("1f1b", pp=2, microbatches=2), steps=1)
"""


@pytest.mark.torch
def test_a_script_that_trains_when_processes_import_it_says_what_to_do(tmp_path):
    """They would train in turn, each in processes of its own."""
    (tmp_path / "script.py").write_text(TRAINS_AT_ONCE)
    with pytest.raises(bfpp.InvalidConfiguration, match=r"model: script\.py trains as soon as"):
        named_in("model", tmp_path / "script.py", "mine")


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a package registers an object of this module under the entry point group."""

    def install(name):
        entry = EntryPoint(name, f"{__name__}:{name}", registry.ENTRY_POINTS)
        monkeypatch.setattr(
            metadata, "entry_points", lambda group: [entry] * (group == entry.group)
        )
        registry.registered_schedules.cache_clear()

    yield install
    monkeypatch.undo()
    registry.registered_schedules.cache_clear()


class Mine(gpipe.GPipe):
    """GPipe under another name."""

    name = "mine"


MINE = Mine()
NOT_A_SCHEDULE = Mine


def test_a_package_can_register_a_schedule(installed):
    installed("MINE")
    names = [schedule.name for schedule in registry.BUILT_IN]
    assert list(bfpp.registered_schedules()) == [*names, "mine"]
    layout = bfpp.Layout(2, 3)
    mine, original = bfpp.build_graph("mine", layout), bfpp.build_graph("gpipe", layout)
    assert bfpp.violations(mine) == []
    assert (mine.operation == original.operation).all()


def test_anything_else_that_is_registered_is_named(installed):
    installed("NOT_A_SCHEDULE")
    with pytest.raises(
        bfpp.InvalidInput, match=r"'NOT_A_SCHEDULE' of bfpp\.schedules is not a Schedule"
    ):
        bfpp.registered_schedules()


@pytest.mark.parametrize(
    ("field", "value"),
    [("pp", 0), ("microbatches", -1), ("loops", 0)],
)
def test_layouts_of_nothing_are_refused(field, value):
    settings = {"pp": 2, "microbatches": 2, field: value}
    with pytest.raises(
        bfpp.InvalidConfiguration, match=f"{field}: must be at least 1, not {value}"
    ):
        bfpp.Layout(**settings)


def test_a_schedule_keeps_to_its_placement():
    with pytest.raises(bfpp.InvalidConfiguration, match="gpipe is not looped"):
        bfpp.build_graph("gpipe", bfpp.Layout(2, 2, loops=2))
    with pytest.raises(bfpp.InvalidConfiguration, match="breadth-first places stages otherwise"):
        bfpp.build_graph("breadth-first", bfpp.Layout(2, 2, placement=(0, 1, 1, 0)))


@pytest.mark.parametrize(
    ("placement", "reason"),
    [((0, 2), "there is no rank 2"), ((0, -1), "no rank -1"), ((1, 1), "rank 0 holds no stage")],
)
def test_placements_that_cannot_be_are_refused(placement, reason):
    with pytest.raises(bfpp.InvalidConfiguration, match=reason):
        bfpp.Layout(2, 2, placement=placement)


@pytest.mark.parametrize("units", [0, (1, 0), (1, 1, 1)])
def test_units_that_cannot_be_are_refused(units):
    with pytest.raises(bfpp.InvalidConfiguration, match="units_per_stage"):
        bfpp.Layout(2, 2, units_per_stage=units)


def test_the_version_has_a_changelog_and_is_cited():
    root = ROOT
    [released, *_] = re.findall(r"^## (\d\S+) - (\S+)$", (root / "CHANGELOG.md").read_text(), re.M)
    citation = (root / "CITATION.cff").read_text()
    assert released[0] == bfpp.__version__
    assert f"\nversion: {released[0]}\ndate-released: {released[1]}\n" in citation
