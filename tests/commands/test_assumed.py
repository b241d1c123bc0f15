"""The software follows from the cluster unless it is said, and is named wherever numbers are."""

import json

import pytest

import bfpp as package
from bfpp.reports.assumptions import TABLE, assumed_values
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import IMPLEMENTATIONS
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS
from bfpp.sim.presets.files import preset_names
from docs.generate import assumptions

MODEL = "--model llama3-8b --layers 4 --pp 2 --microbatches 2"
HOPPER = f"{MODEL} --cluster dgx-h100"
VOLTA = f"{MODEL} --cluster dgx1-v100"


@pytest.mark.parametrize("cluster", preset_names("cluster"))
def test_each_cluster_names_software_of_its_time(cluster):
    found = load_cluster(cluster)
    assert found.implementation == ("paper" if "v100" in cluster else "current")
    assert IMPLEMENTATIONS[found.implementation].too_old_for(found) is None


def test_the_first_answer_is_for_todays_software(answer):
    """55 s with the software of 2022, of which nothing was said."""
    given = (
        "simulate 1f1b --model llama3-70b --cluster dgx-h100 --pp 4 --tp 4 --dp 8 "
        "--microbatches 64 --sharding zero1"
    )
    plain, said = answer(given), answer(f"{given} --implementation current")
    assert plain == said
    assert plain["implementation"] == "current"
    assert 27 < plain["step_time"] < 33
    old = answer(f"{given} --implementation paper")
    assert old["step_time"] > plain["step_time_high"]


@pytest.mark.parametrize(("options", "name"), [(HOPPER, "current"), (VOLTA, "paper")])
@pytest.mark.parametrize("command", ["simulate 1f1b", "explain 1f1b", "experiment 1f1b"])
def test_answers_name_the_implementation(answer, command, options, name):
    assert answer(f"{command} {options}")["implementation"] == name


def test_comparisons_and_searches_name_it(answer):
    compared = answer(f"compare 1f1b gpipe {HOPPER}")["schedules"]
    assert [each["implementation"] for each in compared] == ["current"] * 2
    words = "--model gpt-345m --cluster dgx-h100 --gpus 2 --batch 2 --schedule 1f1b --workers 1"
    found = answer(f"search {words}")
    assert found["implementation"] == "current"
    assert {each["implementation"] for each in found["configurations"]} == {"current"}


def test_people_read_it(bfpp):
    for command in ("simulate 1f1b", "compare 1f1b gpipe", "explain 1f1b"):
        code, out, _ = bfpp(f"{command} {HOPPER}")
        assert code == 0
        (line,) = [each for each in out.splitlines() if each.startswith("implementation")]
        assert "current" in line, command


def test_software_that_is_older_than_the_cluster_is_warned_of(bfpp, answer):
    _, out, _ = bfpp(f"simulate 1f1b {HOPPER} --implementation paper")
    text = " ".join(out.split())
    assert "may not be what you want: the implementation paper is software of 2022" in text
    (warning,) = answer(f"simulate 1f1b {HOPPER} --implementation paper")["warnings"]
    assert "--implementation current" in warning
    assert "warnings" not in answer(f"simulate 1f1b {HOPPER}")
    assert "warnings" not in answer(f"simulate 1f1b {VOLTA}")


def test_an_option_goes_before_a_file_and_a_file_before_the_cluster(answer, tmp_path):
    path = tmp_path / "experiment.toml"
    text = 'schedule = "1f1b"\nmodel = "gpt-345m"\ncluster = "dgx-h100"\npp = 2\n'
    path.write_text(text)
    assert answer("simulate", path)["implementation"] == "paper"  # as files always meant
    path.write_text(text + 'implementation = "torchtitan"\n')
    assert answer("simulate", path)["implementation"] == "torchtitan"
    said = answer("simulate", path, "--implementation", "current")
    assert said["implementation"] == "current"


def test_what_is_written_names_it(bfpp, answer, tmp_path):
    path, saved = tmp_path / "experiment.toml", tmp_path / "step.json.gz"
    assert bfpp(*f"experiment 1f1b {HOPPER} --out".split(), path)[0] == 0
    assert 'implementation = "current"' in path.read_text()
    assert answer("simulate", path)["implementation"] == "current"
    assert bfpp("simulate", path, "--timeline", saved)[0] == 0
    assert answer("show", saved)["implementation"] == "current"
    assert Experiment("1f1b", model="gpt-345m", cluster="dgx1-v100").record["implementation"] == (
        "paper"
    )


def test_a_cluster_file_says_it(answer, bfpp, tmp_path):
    path = tmp_path / "own.toml"
    code, text, _ = bfpp("clusters", "dgx-h100")
    assert code == 0
    lines = [each for each in text.splitlines() if not each.startswith("implementation")]
    path.write_text("\n".join(lines))
    given = f"simulate 1f1b {MODEL} --cluster {path}"
    assert answer(given)["implementation"] == "current"
    path.write_text("\n".join(['implementation = "torchtitan"', *lines]))
    assert answer(given)["implementation"] == "torchtitan"
    path.write_text("\n".join(['implementation = "megatorn"', *lines]))
    code, out, err = bfpp(given)
    assert (code, out) == (2, "")
    assert "--cluster: own: implementation: 'megatorn' is not one of" in err
    assert "did you mean 'megatron'?" in err


def test_python_follows_the_cluster_too():
    model = package.load_model("gpt-345m")
    for cluster, name in (("dgx-h100", "current"), ("dgx1-v100", "paper")):
        costs = package.PhysicalCosts(model, package.load_cluster(cluster))
        assert costs.implementation.name == name
        found = package.search(model, cluster, gpus=1, batch=1, schedules=["1f1b"])
        assert {each["implementation"] for each in found} == {name}


def test_assumptions_name_each_value_and_who_says_it(answer, tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        'schedule = "1f1b"\nmodel = "gpt-345m"\ncluster = "dgx-h100"\nimplementation = "current"\n'
        'pp = 2\nsharding = "zero1"\n'
    )
    words = ("simulate", path, "--assumptions", "--recompute", "full", "--microbatches", "2")
    found = {each.pop("name"): tuple(each.values()) for each in answer(*words)["assumptions"]}
    assert [*found] == [each.name for each in TABLE]
    assert found["recompute"] == ("full", "option")
    assert found["sharding"] == ("partial", "file")
    assert found["implementation"] == ("current", "file")
    assert found["precision"] == ("bf16", "implementation current")
    assert found["clock"][1] == "cluster dgx-h100"
    assert found["layers"] == ("24", "model gpt-345m")
    assert found["clipping"] == ("no", "default")


def test_every_assumption_of_a_step():
    """Each value from its own place, and each source as it names itself."""
    of_model = {"model": "gpt-345m", "cluster": "dgx-h100", "implementation": "current"}
    step = Experiment("1f1b", pp=2, tp=2, **of_model)
    device, software = load_cluster("dgx-h100").device, IMPLEMENTATIONS["current"]
    by_software, by_cluster = "implementation current", "cluster dgx-h100"
    by_model = "model gpt-345m"
    expected = {
        "implementation": ("current", "file"),
        "precision": ("bf16", by_software),
        "recompute": ("none", by_software),
        "attention": ("fused", by_software),
        "sequence_parallel": ("yes", by_software),
        "tp_overlap": (str(software.tp_overlap), by_software),
        "pp_overlap": ("yes", by_software),
        "dp_overlap": ("yes", by_software),
        "cuda_graphs": ("no", by_software),
        "main_gradients": (f"{software.gradient_bytes:g} bytes", by_software),
        "step_seconds": ("10 ms", by_software),
        "host_seconds": (f"{device.host_seconds * 1000:g} ms", by_cluster),
        "clock": (f"{round(100 * device.sustained_efficiency)}%", by_cluster),
        "matmul_efficiency": (f"{round(100 * device.matmul_efficiency)}%", by_cluster),
        "layers": ("24", by_model),
        "seq_length": ("1,024", by_model),
        "sharding": ("none", "default"),
        "microbatch_size": ("1", "default"),
        "update_rule": ("adam", "default"),
        "clipping": ("no", "default"),
        "p2p": ("channels", "default"),
        "offload": ("off", "default"),
    }
    found = {each.name: (each.value, each.source) for each in assumed_values(step)}
    for name in ("clock", "matmul_efficiency"):  # which go on in words
        found[name] = found[name][0].split()[0], found[name][1]
    assert found == expected
    given = assumed_values(step, ["layers", "p2p"])
    assert [each.name for each in given if each.source == "option"] == ["layers", "p2p"]


def test_constants_of_a_file_are_named_as_such(tmp_path):
    path = tmp_path / "constants.toml"
    device = "[clusters.dgx-h100.device]\nhost_seconds = 1e-5\nmatmul_efficiency = 0.5\n"
    path.write_text(f'format = "bfpp constants 1"\n{device}')
    step = Experiment("1f1b", model="gpt-345m", cluster="dgx-h100", constants=str(path))
    found = {each.name: (each.value.split()[0], each.source) for each in assumed_values(step)}
    assert found["host_seconds"] == ("0.01", "constants")
    assert found["matmul_efficiency"] == ("50%", "constants")
    assert [name for name, each in found.items() if each[1] == "constants"] == [
        "host_seconds", "matmul_efficiency",
    ]  # fmt: skip


def test_assumptions_change_with_what_is_said():
    """A table that shows the default whatever is said is of no use."""
    base = Experiment("1f1b", pp=2, tp=2, model="gpt-345m", cluster="dgx-h100")
    usual = {each.name: each.value for each in assumed_values(base)}
    for name, value in {
        "implementation": "torchtitan", "precision": "fp32", "recompute": "full",
        "attention": "unfused", "sequence_parallel": False, "tp_overlap": "bulk",
        "pp_overlap": False, "dp_overlap": False, "cuda_graphs": True, "main_gradients": "bf16",
        "layers": 2, "seq_length": 64, "sharding": "full", "microbatch_size": 2,
        "update_rule": "sgd", "clipping": True, "p2p": "fifo", "offload": "all",
    }.items():  # fmt: skip
        assert name in DEFAULTS
        changed = {each.name: each.value for each in assumed_values(base.changed(**{name: value}))}
        assert changed[name] != usual[name], name


def test_assumptions_need_a_model(bfpp):
    code, _, err = bfpp("simulate 1f1b --assumptions")
    assert code == 2
    assert err.rstrip() == "bfpp simulate: --assumptions: needs --model and --cluster"


def test_the_page_of_assumptions_has_each_value_and_cluster():
    (page,) = assumptions.pages().values()
    for each in TABLE:
        assert f"| `{each.name}` | {each.meaning} |" in page
    for name in preset_names("cluster"):
        assert f"| `{name}` | {load_cluster(name).implementation} |" in page


@pytest.mark.parametrize(
    ("model", "layers", "mix"),
    [
        ("deepseek-v3", 4, "3 dense and 1 with experts, where deepseek-v3 has 3 dense and 58"),
        ("gpt-oss-120b", 3, "2 with a window and 1 without a window"),
        ("gpt-oss-120b", 4, None),
        ("mixtral-8x22b", 4, None),
    ],
)
def test_fewer_layers_of_another_mix_are_warned_of(answer, model, layers, mix):
    words = f"--model {model} --cluster dgx-h100 --pp 2 --microbatches 2 --layers {layers}"
    warnings = answer(f"simulate 1f1b {words}").get("warnings", [])
    assert len(warnings) == (mix is not None)
    assert all(mix in each for each in warnings)


def test_the_time_of_a_step_on_the_host_is_the_clusters_to_say(answer, bfpp, tmp_path):
    """10 ms of `current`, unless the cluster's file has another number or a graph replays all."""
    path = tmp_path / "own.toml"
    _, text, _ = bfpp("clusters", "dgx-h100")
    path.write_text(text.replace("host_seconds =", "step_seconds = 0.5\nhost_seconds ="))
    words = f"{MODEL} --tp 2"
    preset = answer(f"simulate 1f1b {words} --cluster dgx-h100")["step_time"]
    own = answer(f"simulate 1f1b {words} --cluster {path}")["step_time"]
    assert own - preset == pytest.approx(0.49, rel=1e-6)
    path.write_text(text.replace("host_seconds =", "step_seconds = 0\nhost_seconds ="))
    none = answer(f"simulate 1f1b {words} --cluster {path}")["step_time"]
    assert preset - none == pytest.approx(0.01, rel=1e-6)
    graphs = Experiment("1f1b", model="llama3-8b", cluster=str(path), cuda_graphs=True)
    assert graphs.require_physical().step_seconds == 0.0


def test_records_lead_with_the_memory_that_decides(answer):
    record = answer(f"simulate 1f1b {HOPPER}")
    names = [name for name in record if name.startswith("memory")]
    assert names[0] == "memory_reserved_gb"
    assert names.index("memory_largest_gb") < names.index("memory_gb")
    assert json.dumps(record)
