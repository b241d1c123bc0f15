"""`bfpp models` and `bfpp clusters`."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from bfpp.command_line import main
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.models.model import load_model
from bfpp.sim.presets.files import PRESETS, preset_names
from bfpp.terminal.printing import SCHEMA

COMMANDS = {"models": "model", "clusters": "cluster"}
LOAD = {"models": load_model, "clusters": load_cluster}
WIDE = 200

CONFIG = {
    "_name_or_path": "gpt2-small",
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


@pytest.fixture
def answer(capsys):
    """Run a command that works; what it prints."""

    def run(*words):
        assert main([str(word) for word in words]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run


@pytest.fixture
def complaint(capsys):
    """Run a command that fails; the one line that it prints on standard error."""

    def run(*words):
        assert main([str(word) for word in words]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    return run


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama3-8b", 8.03e9), ("llama3-70b", 70.55e9), ("llama3-405b", 405.85e9)],
)
def test_llamas_have_the_published_parameters(name, published):
    """But for the biases of matrices, which they lack."""
    assert load_model(name).parameters == pytest.approx(published, rel=0.0003)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_preset_is_a_row(command, answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDE))
    rows = [line.split() for line in answer(command).splitlines() if line.strip()]
    names = preset_names(COMMANDS[command])
    assert [row[0] for row in rows[-len(names) :]] == names


def test_what_the_tables_say(answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDE))
    rows = [line.split() for line in answer("models").splitlines()]
    assert ["llama3-8b", *LLAMA_ROW] in rows
    inside = load_cluster("dgx1-v100").level("intra_node").bandwidth / 1e9
    rows = [line.split() for line in answer("clusters").splitlines()]
    assert ["dgx1-v100", "8", "125", "32", "900", f"{inside:.0f}", "6.25", "10,000"] in rows


LLAMA_ROW = ["8.0", "32", "4,096", "14,336", "gated", "32/8", "8,192", "128,256", "untied"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_fits_a_narrow_terminal(command, answer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = answer(command)
    assert all(f"{name} " in printed for name in preset_names(COMMANDS[command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_json_lists_all_of_them(command, answer):
    records = json.loads(answer(command, "--json"))[command]
    assert [record["name"] for record in records] == preset_names(COMMANDS[command])
    for record in records:
        one = json.loads(answer(command, record["name"], "--json"))
        assert one == {"schema": SCHEMA, **record}


def test_json_of_a_model_has_the_sizes_that_go_without_saying(answer):
    record = json.loads(answer("models", "gpt3-175b", "--json"))
    assert (record["mlp"], record["kv_heads"]) == (4 * 12288, 96)
    assert record["parameters"] == load_model("gpt3-175b").parameters


def test_json_of_a_cluster_is_the_cluster(answer):
    record = json.loads(answer("clusters", "dgx-a100", "--json"))
    assert record["device"]["peak"] == 312e12
    assert record["inter_node"]["bandwidth"] == 25e9
    assert record["network_intensity"] == 6240


@pytest.mark.parametrize("command", COMMANDS)
def test_a_preset_prints_as_the_file_that_it_is(command, answer):
    for name in preset_names(COMMANDS[command]):
        printed, text = answer(command, name), (PRESETS / command / f"{name}.toml").read_text()
        assert printed.startswith(text)
        assert all(line.startswith("#") for line in printed.removeprefix(text).split("\n") if line)


@pytest.mark.parametrize(("command", "name"), [("models", "bert-52b"), ("clusters", "dgx-a100")])
def test_what_is_printed_can_be_changed_and_read_again(command, name, answer, tmp_path):
    mine = tmp_path / f"{name}.toml"
    mine.write_text(answer(command, name))
    assert LOAD[command](str(mine)) == LOAD[command](name)
    assert answer(command, mine) == mine.read_text()


def test_a_number_may_be_written_as_a_whole_one(tmp_path):
    written = re.compile(r"(?<== )[0-9.]+e[0-9]+")
    for name in preset_names("cluster"):
        mine = tmp_path / f"{name}.toml"
        text = (PRESETS / "clusters" / f"{name}.toml").read_text()
        mine.write_text(written.sub(lambda number: f"{float(number[0]):.0f}", text))
        assert repr(load_cluster(str(mine))) == repr(load_cluster(name, fitted={}))


def test_a_hugging_face_configuration_prints_as_a_model_file(answer, tmp_path):
    config, mine = tmp_path / "config.json", tmp_path / "gpt2-small.toml"
    config.write_text(json.dumps(CONFIG))
    mine.write_text(answer("models", config))
    assert tomllib.loads(mine.read_text())["hidden"] == 768
    record = json.loads(answer("models", config, "--json"))
    assert record == json.loads(answer("models", mine, "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_read_is_one_line(command, complaint, tmp_path):
    field = COMMANDS[command]
    assert complaint(command, "nope").startswith(
        f"bfpp {command}: NAME|FILE: 'nope' is neither a preset ({preset_names(field)[0]},"
    )
    assert "cannot read" in complaint(command, tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    assert "is missing" in complaint(command, tmp_path / "empty.toml")


def test_a_configuration_that_cannot_be_read_is_one_line(complaint, tmp_path):
    config = tmp_path / "config.json"
    assert "cannot read" in complaint("models", config)
    config.write_text(json.dumps({**CONFIG, "n_head": 7}))
    assert complaint("models", config) == (
        "bfpp models: NAME|FILE: gpt2-small: 7 heads do not divide 768\n"
    )
