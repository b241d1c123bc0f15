"""Orders that are not built in, wherever a schedule is named: files, Python files, objects."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings

from bfpp.command_line import main
from bfpp.schedules import InvalidConfiguration, Layout, build_graph, find_schedule, lower
from bfpp.schedules.formats.orders_file import as_given, read_schedule
from bfpp.schedules.formats.torch_csv import read_values, write_orders
from bfpp.schedules.settings.sharding import Communication
from bfpp.sim.experiment.experiment import experiment_of
from bfpp.sim.experiment.values import OPTIONS
from tests.helpers.strategies import configurations, orders

STEP = ["--pp", "3", "--microbatches", "6"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def zb_v(here):
    schedule = find_schedule("zb-v")
    text = write_orders(schedule.orders(schedule.layout(3, 6)))
    (here / "zb-v.csv").write_text(text)
    return text


def output_of(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


def results_of(capsys, *words):
    record = json.loads(output_of(capsys, *words, "--json"))
    return {name: value for name, value in record.items() if name != "schedule"}


def refusal_of(capsys, *words):
    """The one line with which a command is refused."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main([*words]))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.strip().split(": ", 1)[1]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(orders())
def test_any_orders_that_can_run_are_a_schedule(tmp_path_factory, drawn):
    layout, steps = drawn
    path = tmp_path_factory.mktemp("orders") / "any.csv"
    path.write_text("# seen in the wild\n" + write_orders(steps))
    schedule = find_schedule(str(path))
    units = layout.units_per_stage
    own = schedule.layout(layout.pp, layout.microbatches, units_per_stage=units)
    graph = build_graph(schedule, own)
    assert graph.digest == lower(steps, layout, Communication()).digest


@settings(derandomize=True, deadline=None, max_examples=30)
@given(configurations(3, 3, 24))
def test_orders_stand_for_the_schedule_that_made_them(configuration):
    schedule, layout, communication = configuration
    found = as_given(schedule, layout)
    assert build_graph(found, layout, communication).digest == configuration.graph().digest
    again = pickle.loads(pickle.dumps(found))
    assert (again, hash(again), again.name) == (found, hash(found), schedule.name)


def test_a_file_is_simulated_like_what_it_was_written_from(zb_v, here, capsys):
    costs = ["--forward", "2", "--backward", "3", "--transfer", "0.5"]
    written = results_of(capsys, "simulate", "zb-v.csv", *costs)
    assert written == results_of(capsys, "simulate", "zb-v", *STEP, *costs)
    assert output_of(capsys, "orders", "zb-v.csv") == zb_v
    assert "idle" in output_of(capsys, "explain", "zb-v.csv")
    compared = output_of(capsys, "compare", "zb-v.csv", "zb-v", *STEP, "--loops", "2")
    assert compared.count("fastest") == 2
    (here / "costly.csv").write_text(f"# forward = 2\n# backward = 3\n# transfer = 0.5\n{zb_v}")
    assert output_of(capsys, "compare", "costly.csv", "zb-v").count("fastest") == 2


def test_a_file_can_say_costs_which_options_change(zb_v, here, capsys):
    (here / "costly.csv").write_text(f"# forward = 2\n# backward-input=3\n{zb_v}# transfer = 1\n")
    costs = ["--forward", "2", "--backward-input", "3", "--transfer", "1"]
    said = results_of(capsys, "simulate", "costly.csv")
    assert said == results_of(capsys, "simulate", "zb-v", *STEP, *costs)
    changed = results_of(capsys, "simulate", "costly.csv", "--transfer", "0")
    assert changed == results_of(capsys, "simulate", "zb-v", *STEP, *costs[:4])
    assert main(["check", "costly.csv"]) == 0


def test_every_value_of_an_experiment_can_be_said_with_orders():
    """Whatever is in its name."""
    said = dict.fromkeys(OPTIONS, "1")
    assert read_values("".join(f"# {name} = 1\n" for name in said)) == said


@pytest.mark.torch
def test_pytorchs_communication_actions_are_read_over(here, capsys):
    """A dump of PyTorch's runtime: its own communication, and gaps where a rank idles."""
    text = "0F0,0SEND_F0,0F1,,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1\n"
    (here / "torch.csv").write_text(text)
    assert output_of(capsys, "orders", "torch.csv") == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


REFUSED = {
    "--pp 4": "--pp: zb-v.csv has 3, not 4",
    "--microbatches 7": "--microbatches: zb-v.csv has 6, not 7",
    "--loops 3": "--loops: zb-v.csv is not looped but holds 2 stages a rank; "
    "--units-per-stage splits its stages",
    "--sequence 3": "--sequence: zb-v.csv has no such parameter",
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_that_contradict_a_file_are_refused(zb_v, capsys, words):  # noqa: ARG001
    assert refusal_of(capsys, "simulate", "zb-v.csv", *words.split()) == REFUSED[words]


MALFORMED = {
    "0F0,eat": "line 1, cell 2: 'eat' is not an action; expected stage, one of F, B, I, W, and "
    "micro-batch, as in 2F0",
    "": "holds no compute step (such as 0F0 or 0B0)",
    "# forward = 1": "holds no compute step (such as 0F0 or 0B0)",
    "0F0\n": "backward: stage 0 never runs micro-batch 0 backward",
    "0B0,0F0,0F2,0B2": "numbering: micro-batch 1 is missing, though there is micro-batch 2 "
    "(and 1 more: bfpp check bad.csv)",
    "0F0,1B0\n1F0,0B0": "placement: stage 0 runs on ranks 0, 1 (and 1 more: bfpp check bad.csv)",
    "# eat = 1\n0F0,0B0": "eat: no such value",
    "# forward = eat\n0F0,0B0": "forward: must be a number of at least 0, not 'eat'",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_files_that_cannot_run_are_refused_in_one_line(here, capsys, text):
    (here / "bad.csv").write_text(text)
    assert refusal_of(capsys, "simulate", "bad.csv") == f"SCHEDULE: bad.csv: {MALFORMED[text]}"


def test_files_that_are_none_are_refused_in_one_line(here, capsys):
    (here / "folder.csv").mkdir()
    assert refusal_of(capsys, "orders", "folder.csv") == "SCHEDULE: folder.csv: Is a directory"
    no_file = "SCHEDULE: none.csv: No such file or directory"
    assert refusal_of(capsys, "simulate", "none.csv") == no_file


MINE = """
from bfpp.schedules.families.gpipe import GPipe

class Mine(GPipe):
    name = "mine"

SCHEDULE = Mine()
NEITHER = 3

class Faulty(GPipe):
    def __init__(self):
        raise OSError("eaten")
"""


def test_a_python_file_holds_schedules(here, capsys):
    (here / "mine.py").write_text(MINE)
    expected = results_of(capsys, "simulate", "gpipe", *STEP)
    for name in ("SCHEDULE", "Mine"):
        assert results_of(capsys, "simulate", f"mine.py:{name}", *STEP) == expected


def test_python_files_without_it_are_refused_in_one_line(here, capsys):
    (here / "mine.py").write_text(MINE)
    (here / "broken.py").write_text("import nothing.at.all\n")
    for name in ("NEITHER", "no_such"):
        none = f"SCHEDULE: mine.py has no Schedule of the name {name!r}"
        assert refusal_of(capsys, "orders", f"mine.py:{name}") == none
    faulty = "SCHEDULE: mine.py:Faulty fails with OSError: eaten"
    assert refusal_of(capsys, "orders", "mine.py:Faulty") == faulty
    broken = "SCHEDULE: broken.py:X fails with ModuleNotFoundError: No module named 'nothing'"
    assert refusal_of(capsys, "orders", "broken.py:X") == broken
    assert refusal_of(capsys, "orders", "no.py:X") == "SCHEDULE: there is no Python file no.py"
    assert refusal_of(capsys, "orders", "mine.py").endswith(
        "name a schedule in the file, as mine.py:NAME"
    )


def test_an_experiment_file_finds_orders_beside_it(zb_v, here, capsys):  # noqa: ARG001
    folder = here / "elsewhere"
    folder.mkdir()
    (here / "zb-v.csv").rename(folder / "zb-v.csv")
    (folder / "mine.toml").write_text('schedule = "zb-v.csv"\ntransfer = 1\npp = 3\n')
    written = results_of(capsys, "simulate", "elsewhere/mine.toml")
    assert written == results_of(capsys, "simulate", "zb-v", *STEP, "--transfer", "1")


def test_orders_know_their_layout(zb_v):  # noqa: ARG001
    schedule = read_schedule("zb-v.csv")
    assert schedule.home == Layout(3, 6, placement=(0, 1, 2, 2, 1, 0))
    assert experiment_of({"schedule": "zb-v.csv"}).pp == 3
    with pytest.raises(InvalidConfiguration, match=r"zb-v\.csv has no such parameter"):
        find_schedule("zb-v.csv", sequence=3)
