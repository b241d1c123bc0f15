"""DeepSpeed's JSON: beside Megatron-DeepSpeed's flags, beside a program's options, and alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bfpp.launchers.launch_file import LaunchFile, read_launch_file
from bfpp.launchers.recognise import is_launch_file
from bfpp.schedules import InvalidConfiguration

Bfpp = Callable[..., tuple[int, str, str]]

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 4 --global-batch-size 32"
)
LAUNCH = f"deepspeed --num_gpus 8 pretrain_gpt.py {SIZES} --deepspeed"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(settings: Mapping[str, Any], name: str = "ds.json") -> str:
    Path(name).write_text(json.dumps(settings))
    return name


def script(text: str) -> LaunchFile:
    Path("train.sh").write_text(text)
    return read_launch_file("train.sh")


def beside(settings: Mapping[str, Any], flags: str = "--bf16") -> LaunchFile:
    return script(f"{LAUNCH} {flags} --deepspeed_config {written(settings)}\n")


def matter(launch: LaunchFile) -> dict[str, str]:
    return {each.name: each.reason for each in launch.ignored if each.matters}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"sharding": "none", "clipping": False, "dp_overlap": False}),
    "stage 1": (
        {"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "bf16": {"enabled": True}},
        {"sharding": "partial", "clipping": True, "main_gradients": "bf16", "dp_overlap": False},
    ),
    "stage 2, overlapped": (
        {"zero_optimization": {"stage": 2, "overlap_comm": True}},
        {"sharding": "partial", "dp_overlap": True},
    ),
    "stage 3": (
        {"zero_optimization": {"stage": 3}}, {"sharding": "full", "dp_overlap": True},
    ),
    "stage 3 without overlap": (
        {"zero_optimization": {"stage": 3, "overlap_comm": False}},
        {"sharding": "full", "dp_overlap": False},
    ),
    "gradients in full": (
        {
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "fp32"},
            "bf16": {"enabled": True},
        },
        {"main_gradients": None},
    ),
    "half": (
        {"fp16": {"enabled": True}, "bf16": {"enabled": False}},
        {"precision": "fp16", "main_gradients": "bf16"},
    ),
    "an older name": (
        {"bfloat16": {"enabled": True}}, {"precision": "bf16", "sharding": "partial"},
    ),
    "its own attention": ({}, {"attention": "unfused"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_engine_does_as_its_file_says(name: str) -> None:
    settings, expected = CASES[name]
    precisions = {"fp16", "bf16", "bfloat16"} & settings.keys()
    launch = beside(settings, "" if precisions else "--bf16")
    experiment = launch.experiment
    assert {key: getattr(experiment, key) for key in expected} == expected
    assert (experiment.dp, experiment.microbatch_size, experiment.microbatches) == (8, 4, 1)


def test_where_flags_differ_the_file_counts_but_for_the_batch_and_the_optimizer() -> None:
    launch = beside(
        {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
            "bf16": {"enabled": True},
        },
        "--bf16 --zero-stage 1 --clip-grad 1.0",
    )
    assert launch.experiment.microbatches == 1
    assert not launch.experiment.clipping
    said = {name: reason for name, reason in matter(launch).items() if "parameters" not in reason}
    assert said == {
        "--zero-stage": "zero_optimization.stage of ds.json counts: 2",
        "--clip-grad": "gradient_clipping of ds.json counts: 0",
        "train_batch_size": "--global-batch-size 32 is predicted: the program says the batch",
    }
    without = {each.name for each in launch.ignored if not each.matters}
    assert {"optimizer.type", "optimizer.params.lr", "bf16.enabled"} <= without


def test_a_batch_that_only_the_file_says_is_its_own() -> None:
    flags = LAUNCH.replace("--micro-batch-size 4 --global-batch-size 32", "")
    written({"train_batch_size": 96, "train_micro_batch_size_per_gpu": 3})
    launch = script(f"{flags} --deepspeed_config ds.json\n")
    experiment = launch.experiment
    assert (experiment.microbatch_size, experiment.microbatches) == (3, 4)
    assert "train_batch_size 96" in launch.understood
    written({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 3})
    with pytest.raises(InvalidConfiguration, match="train_batch_size: 3 x 8 replicas do not"):
        script(f"{flags} --deepspeed_config ds.json\n")


def test_what_is_offloaded_or_unknown_is_named() -> None:
    launch = beside(
        {
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "nvme", "nvme_path": "/x"},
                "reduce_bucket_size": 5e7,
            },
            "activation_checkpointing": {
                "partition_activations": True, "cpu_checkpointing": False, "profile": True,
            },
            "curriculum_learning": {"enabled": False, "min_difficulty": 8},
            "flops_profiler": {"enabled": True, "profile_step": 2},
            "steps_per_print": 10,
            "invented": {"a": [1, 2]},
            "null": None,
        }
    )  # fmt: skip
    said = matter(launch)
    assert said["zero_optimization.offload_optimizer.device"] == (
        "the optimizer's states are predicted on the device"
    )
    assert said["zero_optimization.offload_param.device"] == "weights are predicted on the device"
    assert said["invented.a"] == "not known to bfpp"
    assert {"activation_checkpointing.partition_activations", "flops_profiler.enabled"} <= {*said}
    without = {each.name: each.reason for each in launch.ignored if not each.matters}
    assert without["steps_per_print"] == "logging"
    assert without["activation_checkpointing.cpu_checkpointing"].startswith("off; ")
    assert without["curriculum_learning.min_difficulty"].startswith("off; ")


def test_nothing_of_a_file_is_lost_in_silence() -> None:
    settings = {
        "train_batch_size": 32, "fp16.enabled": False, "bf16.enabled": True, "a.b": 1,
        "zero_optimization.stage": 1, "gradient_clipping": 0.5, "scheduler.type": "auto",
        "zero_optimization.overlap_comm": "auto", "data_types.grad_accum_dtype": "bf16",
    }  # fmt: skip
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = value
    for launch in (
        beside(nested),
        beside(nested, "--bf16 --zero-stage 1 --clip-grad 0.5"),
        read_launch_file("ds.json"),
        script("deepspeed train.py --deepspeed ds.json\n"),
    ):
        understood = {each.partition(" ")[0] for each in launch.understood}
        assert settings.keys() <= understood | {each.name for each in launch.ignored}


TEMPLATE = '{"train_batch_size": GBSIZE, "zero_optimization": {"stage": ZERO_STAGE}}\n'
HEREDOC = (
    'cat <<EOT > $CONFIG\n{"zero_optimization": {"stage": $ZERO}, "bf16": {"enabled": true}}\nEOT\n'
)
SED = 'sed "s/GBSIZE/32/" ${TEMPLATE} | sed "s/ZERO_STAGE/${ZERO}/" > ${CONFIG}\n'


@pytest.mark.parametrize("makes", [HEREDOC, SED])
@pytest.mark.parametrize(
    "option", ["--deepspeed_config ", "--deepspeed_config=", "--deepspeed-config "]
)
def test_a_file_that_the_script_makes(makes: str, option: str) -> None:
    """As the examples of Megatron-DeepSpeed make theirs."""
    Path("ds_TEMPLATE.json").write_text(TEMPLATE)
    begins = 'ZERO=3\nTEMPLATE="ds_TEMPLATE.json"\nCONFIG="out_gbs32_zero${ZERO}.json"\n'
    launch = script(f'{begins}{makes}ARGS="{option}${{CONFIG}} --bf16"\n{LAUNCH} $ARGS\n')
    assert launch.experiment.sharding == "full"
    assert not Path("out_gbs32_zero3.json").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "nowhere.json, DeepSpeed's file, is not there"),
        ('{"a": ZERO}', "nowhere.json is not JSON: Expecting value"),
        ("[1]", "nowhere.json holds no table of settings"),
    ],
)
def test_a_file_that_cannot_be_read_is_left_out_or_refused(text: str | None, reason: str) -> None:
    if text is not None:
        Path("nowhere.json").write_text(text)
    launch = script(f"{LAUNCH} --bf16 --zero-stage 1 --deepspeed_config nowhere.json\n")
    assert launch.experiment.sharding == "partial"
    assert matter(launch)["--deepspeed_config"].startswith(reason)
    with pytest.raises(InvalidConfiguration, match=reason):
        script("deepspeed train.py --deepspeed nowhere.json\n")


TRAINER = (
    "deepspeed {launcher} train.py --deepspeed ds.json --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2 --model_name_or_path meta-llama/Llama-2-7b-chat-hf "
    "--bf16 True --gradient_checkpointing True --model_max_length 2048 --learning_rate 2e-5 "
    "--output_dir x --ours 1"
)
FILLED_IN = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2},
}  # fmt: skip


def test_options_of_a_trainer_fill_in_what_is_auto() -> None:
    written(FILLED_IN)
    launch = script(TRAINER.format(launcher="--num_gpus 8") + "\n")
    experiment = launch.experiment
    assert experiment.transformer.name == "llama2-7b"
    assert experiment.transformer.sequence == 2048
    assert (experiment.dp, experiment.microbatch_size, experiment.microbatches) == (8, 4, 2)
    assert (experiment.precision, experiment.recompute) == ("bf16", "full")
    assert (experiment.sharding, experiment.clipping) == ("partial", True)
    assert set(matter(launch)) == {"--ours"}
    assert launch.framework == "DeepSpeed"


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [("--num_gpus=4", 4), ("--num_nodes 2 --num_gpus 4", 8), ("--include localhost:0,1,3", 3),
     ("--include a:0,1@b:0,1", 4), ("--include a@b:0", 1)],
)  # fmt: skip
def test_gpus_of_the_launcher(launcher: str, gpus: int) -> None:
    written(FILLED_IN)
    assert script(TRAINER.format(launcher=launcher) + "\n").experiment.dp == gpus


def test_a_module_is_a_program() -> None:
    written(FILLED_IN)
    text = TRAINER.format(launcher="--num_gpus 2 --module").replace("train.py", "ours.trainer")
    assert script(f"{text}\n").experiment.dp == 2


@pytest.mark.parametrize(
    ("batch", "gpus", "expected"),
    [
        ((64, 4, 2), "", (8, 4, 2)),
        ((64, 4, None), "--num_gpus 8", (8, 4, 2)),
        ((64, None, 2), "--num_gpus 8", (8, 4, 2)),
        ((None, 4, 2), "--num_gpus 8", (8, 4, 2)),
        ((64, None, None), "--num_gpus 8", (8, 8, 1)),
        ((None, 4, None), "--num_gpus 8", (8, 4, 1)),
        ((64, 4, None), "", (1, 4, 16)),
        ((64, 4, 3), "--num_gpus 8", "train_batch_size: 64 is not 4 x 3 x 8 replicas"),
        ((60, 4, None), "--num_gpus 8", "train_batch_size: 60 is not 4 x 1 x 8 replicas"),
    ],
)
def test_two_numbers_of_a_batch_give_the_third(
    batch: tuple[int | None, ...], gpus: str, expected: tuple[int, ...] | str
) -> None:
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    written({name: value for name, value in zip(names, batch, strict=True) if value})
    text = f"deepspeed {gpus} train.py --deepspeed --deepspeed_config ds.json\n"
    if isinstance(expected, str):
        with pytest.raises(InvalidConfiguration, match=expected):
            script(text)
        return
    read = script(text).experiment
    assert (read.dp, read.microbatch_size, read.microbatches) == expected


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("Adam", "adam"),
        ("AdamW", "adam"),
        ("SGD", "momentum"),
        ("Muon", "muon"),
        ("Lion", "momentum"),
    ],
)
def test_the_optimizer_that_deepspeed_makes(kind: str, rule: str) -> None:
    written({"train_batch_size": 8, "optimizer": {"type": kind}})
    assert (read_launch_file("ds.json").experiment.update_rule or "adam") == rule


def test_alone_it_needs_a_model_and_says_so_in_one_line(bfpp: Bfpp) -> None:
    written({"train_batch_size": 8, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}})
    needs = "SCHEDULE: ds.json names no model: --model NAME does, and --seq-length its tokens\n"
    for command in ("simulate ds.json", "explain ds.json", "experiment ds.json"):
        code, out, error = bfpp(command)
        assert (code, out) == (2, "")
        assert error.endswith(needs)
    assert bfpp("compare ds.json gpipe")[2].endswith(needs)
    code, out, error = bfpp("search ds.json --gpus 8")
    assert (code, out) == (2, "")
    assert error.endswith("ds.json says no model, which a search divides: --model NAME does\n")


def test_options_give_what_it_does_not_say(bfpp: Bfpp) -> None:
    written({**FILLED_IN, "train_batch_size": 8})
    code, out, error = bfpp(
        "simulate ds.json --json --model gpt-345m --dp 4 --microbatch-size 2 --microbatches 1"
    )
    assert code == 0, error
    record = json.loads(out)
    assert record["assumed"] == [
        "precision bf16: the file leaves it to the program",
        "cluster dgx-h100: launch files name none, --cluster does",
    ]
    needed = {each["name"] for each in record["ignored"] if each["value"] == "auto"}
    assert "train_micro_batch_size_per_gpu" in needed
    code, out, error = bfpp("search ds.json --json --model gpt-345m --gpus 2 --top 1")
    assert code == 0, error
    assert json.loads(out)["given"]["configuration"]["sharding"] == "partial"


def test_other_json_is_no_launch_file() -> None:
    written({"format": "bfpp timeline 1"}, "timeline.json")
    written({"hidden_size": 1}, "config.json")
    Path("large.json").write_text(json.dumps({"train_batch_size": 1, "x": " " * 2**20}))
    for name in ("timeline.json", "config.json", "large.json", "nowhere.json"):
        assert not is_launch_file(name)
    assert is_launch_file(written({"zero_optimization": {"stage": 1}}))
