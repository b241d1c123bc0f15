"""Launch files on the command line: wherever a schedule is named, with options over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bfpp.launchers.recognise import is_launch_file
from bfpp.sim.experiment.experiment import experiment_of

Bfpp = Callable[..., tuple[int, str, str]]

FLAGS = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16 --bf16 "
    "--vocab-size 32000 --pipeline-model-parallel-size 2"
)
SCRIPT = f"torchrun --nproc-per-node 4 pretrain_gpt.py {FLAGS} --lr 1e-4 --invented 3\n"
YAML = "MODEL_ARGS:\n" + "".join(
    f"  {name}: {value}\n"
    for name, value in zip(
        [*FLAGS.replace("--bf16 ", "").split()[::2], "--bf16"],
        [*FLAGS.replace("--bf16 ", "").split()[1::2], "true"],
        strict=True,
    )
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT)
    Path("job.yaml").write_text(YAML)


@pytest.mark.usefixtures("files")
def test_all_forms_of_a_job_are_the_same_experiment(bfpp: Bfpp) -> None:
    forms = ("train.sh", "job.yaml --dp 2 --microbatches 8", f"-- {SCRIPT.strip()}")
    records = [json.loads(bfpp(f"simulate --json {form}")[1]) for form in forms]
    assert len({record["step_time"] for record in records}) == 1
    assert {record["schedule"] for record in records} == {"1f1b"}
    assert [each["name"] for each in records[0]["ignored"]] == ["--lr", "--invented"]
    assert [each["matters"] for each in records[0]["ignored"]] == [False, True]
    assert "--pipeline-model-parallel-size 2" in records[0]["understood"]
    assert not any("GPUs" in each for each in records[1]["assumed"])


def test_tables_beside_the_flags_of_a_functional_test_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bfpp: Bfpp
) -> None:
    monkeypatch.chdir(tmp_path)
    beside = "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nTEST_TYPE: regular\nMODE:\nOURS: 1\n"
    Path("job.yaml").write_text(f"{beside}{YAML}")
    ignored = json.loads(bfpp("simulate --json job.yaml")[1])["ignored"]
    assert [(each["name"], each["value"], each["matters"]) for each in ignored] == [
        ("ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS", "1", False),
        ("TEST_TYPE", "regular", False),
        ("MODE", "", False),
        ("OURS", "", True),
    ]


@pytest.mark.usefixtures("files")
def test_variables_that_a_test_asks_for_are_not_set_unless_the_command_sets_them(
    bfpp: Bfpp,
) -> None:
    flags = "--num-virtual-stages-per-pipeline-rank $LAYERS"
    asks = f'if [ -z $LAYERS ]; then\n  V=""\nelse\n  V="{flags}"\nfi\n[ -z $RANK ] && RANK=0\n'
    Path("asks.sh").write_text(asks + SCRIPT.replace("--lr 1e-4", "${V}"))
    record = json.loads(bfpp("simulate --json asks.sh")[1])
    ignored = {each["name"]: (each["value"], each["matters"]) for each in record["ignored"]}
    assert ignored["$LAYERS"] == ("[ -z $LAYERS ]", True)
    assert ignored["$RANK"] == ("[ -z $RANK ]", False)
    assert record["schedule"] == "1f1b"
    record = json.loads(bfpp("simulate --json -- LAYERS=2 bash asks.sh")[1])
    assert "$LAYERS" not in {each["name"] for each in record["ignored"]}
    assert record["schedule"] == "depth-first"


@pytest.mark.usefixtures("files")
def test_the_table_says_what_was_left_out(bfpp: Bfpp) -> None:
    code, out, error = bfpp("simulate train.sh")
    assert (code, error) == (0, "")
    plain = " ".join(out.split())
    assert "train.sh, of Megatron-LM: 10 settings understood" in plain
    assert "may matter: --invented (not known to bfpp)" in plain
    assert "without effect on a step: --lr (learning rate and its like)" in plain
    assert "assumed: cluster dgx-h100" in plain


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "assumed"),
    [
        ("", "cluster dgx-h100: launch files name none, --cluster does"),
        ("--cluster dgx-h100", None),
        ("--cluster=dgx-a100", None),
    ],
)
def test_what_an_option_says_is_not_assumed(bfpp: Bfpp, options: str, assumed: str | None) -> None:
    sentences = [assumed] if assumed else []
    record = json.loads(bfpp(f"simulate train.sh {options} --json")[1])
    assert record.get("assumed", []) == sentences
    said = bfpp(f"explain train.sh {options}")[2]
    assert ("assumed" in said) == (assumed is not None)
    code, out, error = bfpp(f"search train.sh {options} --json --top 1 --schedule 1f1b")
    assert (code, json.loads(out).get("assumed", [])) == (0, sentences), error
    assert ("assumed" in error) == (assumed is not None)


def test_degrees_and_batches_of_options_are_not_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bfpp: Bfpp
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(YAML.replace("  --global-batch-size: 16\n", ""))
    for options, said in (
        ("", 3),
        ("--dp 4", 2),
        ("--dp 4 --microbatches 8 --cluster dgx-a100", 0),
    ):
        record = json.loads(bfpp(f"simulate job.yaml --json {options}")[1])
        assert len(record.get("assumed", [])) == said


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command",
    [
        "explain train.sh", "orders train.sh", "experiment train.sh", "compare train.sh 1f1b",
        "check train.sh",
        "explain train.sh --against=--recompute=full",
    ],
)  # fmt: skip
def test_every_command_that_takes_a_schedule_takes_it(bfpp: Bfpp, command: str) -> None:
    code, _, error = bfpp(command)
    assert code == 0, error
    assert "Traceback" not in error


@pytest.mark.usefixtures("files")
def test_other_commands_say_in_a_line_what_may_matter(bfpp: Bfpp) -> None:
    code, out, error = bfpp("orders train.sh")
    assert code == 0
    assert out.startswith("0F0,")
    assert error.startswith(
        "bfpp orders: train.sh: left out or taken otherwise: --invented; assumed "
    )
    assert error.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_options_override_and_the_experiment_can_be_kept(bfpp: Bfpp) -> None:
    code, out, _ = bfpp("experiment train.sh --cluster dgx-b200 --microbatches 4 --json")
    assert code == 0
    record = json.loads(out)
    assert (record["cluster"], record["microbatches"], record["dp"]) == ("dgx-b200", 4, 2)
    record = {name: value for name, value in record.items() if name != "schema"}
    assert experiment_of(record).transformer.hidden == 1024
    code, _, error = bfpp("experiment train.sh --out job.toml")
    assert code == 0, error
    kept, given = (
        json.loads(bfpp(f"simulate {each} --json")[1]) for each in ("job.toml", "train.sh")
    )
    assert kept["step_time"] == given["step_time"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("echo\n", "a.sh", "a.sh has no command that trains"),
        ("if [ $A -eq 0 ]; then\n python pretrain_gpt.py --a 1\nfi\n", "a.sh",
         "but where it depends on what runs: line 1, if [ $A -eq 0 ]"),
        ("python tools/run_text_generation_server.py --num-layers 4\n", "a.sh",
         "a.sh: tools/run_text_generation_server.py trains nothing, by its name (generat)"),
        ("A='1\n", "a.sh", "a.sh is not a shell script: a quote is not closed"),
        ("a: [1\n", "a.yaml", "a.yaml is not YAML: while parsing a flow sequence"),
        ("- 1\n", "a.yaml", "a.yaml holds no table of settings"),
        ("a: 1\n", "a.yaml", "a.yaml has none of: a table MODEL_ARGS"),
        ("a: !!python/object/apply:os.system ['touch made']\n", "a.yaml", "has none of"),
        ("[training]\nseq_len = 8\n", "a.toml", "a.toml: names no model: name and flavor"),
        ('[model]\nname = "llama3"\nflavor = "9B"\n[training]\nseq_len = 8\n', "a.toml",
         "a.toml: the sizes of llama3 9B are not known"),
        ("MODEL_ARGS:\n  --num-layers: 4\n", "a.yaml", "--num-attention-heads: is missing"),
        ("\xff", "a.sh", "a.sh is not text"),
    ],
)  # fmt: skip
def test_what_is_no_launch_file_is_refused_in_one_line(
    bfpp: Bfpp, text: str, name: str, reason: str
) -> None:
    Path(name).write_bytes(text.encode("latin-1"))
    code, out, error = bfpp(f"simulate {name}")
    assert (code, out) == (2, "")
    assert error.startswith("bfpp simulate: SCHEDULE: ")
    assert error.count("\n") == 1
    assert reason in error
    assert not Path("made").exists()


@pytest.mark.usefixtures("files")
def test_a_script_takes_the_arguments_and_variables_of_its_command(bfpp: Bfpp) -> None:
    sizes = FLAGS.replace("--num-layers 8", "--num-layers $N")
    Path("sized.sh").write_text(
        'MORE=\ncase $1 in\n  small) N=8;;\n  *) N=16;;\nesac\nif [ "$PRECISION" = bf16 ]; then\n'
        f'  MORE=--bf16\nfi\nshift\ntorchrun pretrain_gpt.py {sizes} $MORE "$@"\n'
    )
    known = json.loads(bfpp("simulate train.sh --json")[1])
    for shell in ("bash ", "sh -x ", "sbatch --nodes 1 ", "./"):
        words = f"simulate --json -- PRECISION=bf16 {shell}sized.sh small --lr 1e-4 --invented 3"
        record = json.loads(bfpp(words)[1])
        assert record["ignored"][:2] == known["ignored"]
        assert record["layers_of_stages"] == known["layers_of_stages"]
    large = json.loads(bfpp("simulate --json -- PRECISION= bash sized.sh large")[1])
    assert large["step_time"] > 1.5 * known["step_time"]
    code, _, error = bfpp("simulate sized.sh")
    assert code == 2
    assert error == (
        "bfpp simulate: SCHEDULE: sized.sh: --num-layers: must be a whole number, not '$N'; "
        "line 2, case $1 in, depends on $1, which -- bash sized.sh ARGUMENTS gives\n"
    )


def test_the_setting_that_an_argument_is_names_it(bfpp: Bfpp, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"torchrun pretrain_gpt.py {FLAGS.replace('-layers 8', '-layers $2')}\n")
    assert bfpp(f"simulate {path}")[2].endswith(
        f"not '$2'; it depends on $2, which -- bash {path} ARGUMENTS gives\n"
    )


def test_missing_files_and_what_is_no_launch_file(bfpp: Bfpp) -> None:
    code, _, error = bfpp("simulate nowhere.sh")
    assert code == 2
    assert error == "bfpp simulate: SCHEDULE: cannot read 'nowhere.sh': No such file or directory\n"
    for name in ("1f1b", "orders.csv", "mine.py:Mine", "job.toml", "DualPipeV", "echo hello"):
        assert not is_launch_file(name)
    for name in (
        "a.sh",
        "a.yaml",
        "a.yml",
        "a.slurm",
        "A=1 torchrun a.py",
        "python a.py --x 1",
        "bash a.sh 70b",
        "X=1 sbatch -N 2 a.slurm",
    ):
        assert is_launch_file(name)


TOML = """
[model]
name = "{model}"
flavor = "{flavor}"
[training]
local_batch_size = 8
seq_len = 2048
[parallelism]
data_parallel_shard_degree = 2
pipeline_parallel_degree = {pp}
[activation_checkpoint]
mode = "selective"
selective_ac_option = "{option}"
"""


@pytest.mark.parametrize(
    ("model", "flavor", "pp", "option", "recomputed"),
    [
        ("llama3", "8B", 1, "op", "mlp"),
        ("llama3", "8B", 2, "2", "layernorm"),
        ("deepseek_v3", "16B", 2, "op", "layernorm"),
    ],
)
def test_torchtitan_s_files_say_what_is_recomputed_and_how_often_fsdp_reduces(
    tmp_path: Path, bfpp: Bfpp, model: str, flavor: str, pp: int, option: str, recomputed: str
) -> None:
    file = tmp_path / "train.toml"
    file.write_text(TOML.format(model=model, flavor=flavor, pp=pp, option=option))
    code, out, _ = bfpp(f"experiment {file} --json")
    found = json.loads(out)
    assert (code, found["recompute"]) == (0, recomputed)
    per = None if pp == 1 else "step"
    assert (found.get("gather_per"), found.get("reduce_per")) == (per, per)
