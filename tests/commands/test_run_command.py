"""`bfpp run`: its options, its one-line errors, and what it tells."""

from __future__ import annotations

import json
import os
import re
import statistics
from pathlib import Path

import pytest

import bfpp
from benchmarks.helpers.programs import MODEL
from bfpp.api.running.jobs import require_torch
from bfpp.traces.formats.timeline_json import read_timeline
from tests.helpers.run_program import run_here

LOCAL = ("--backend", "local")
SMALL = ("breadth-first", "--pp", 2, "--loops", 2, "--microbatches", 4, "--steps", 3)

KEYS = {
    "schema", "schedule", "backend", "first_step", "losses", "step_times", "median_step_time",
    "elapsed_times", "tokens_per_second", "mfu", "stopped", "saved", "resumed_from", "changed",
    "skipped_steps", "evaluations", "memory", "start_memory",
}  # fmt: skip
VERIFIED = {
    "reference_losses", "max_loss_error", "max_weight_error", "movement_error", "tolerance",
    "exact",
}  # fmt: skip

BAD = {
    "--tp 2": "--tp: divides the loss of the built-in transformer alone",
    "--tp 3 --layers 4": "--tp: 3 must divide heads of keys and values: 4",
    "--tp 2 --backend torch-pipelining --recompute none": "--tp: PyTorch's runtime runs whole",
    "--tp 2 --sleep profile.toml": "mocks whole layers: not with --tp",
    "--sleep profile.toml --offload all": "keeps no activations: not with --offload",
    "--offload all --backend torch-pipelining --recompute none": "--offload: PyTorch's runtime off",
    "--offload all --offload-share 2": "--offload-share: must be more than 0 and at most 1, not 2",
    "--offload some": "--offload: 'some' is not one of off, all, selective, or a number of passes",
    "--offload selective": "--offload: selective needs --model and --cluster; bfpp run and orders",
    "--resume": "--checkpoint: required with --resume or --save-every",
    "--save-every 2": "--checkpoint: required with --resume or --save-every",
    "--keep 2": "--checkpoint: required with --keep, --keep-every or --async-save",
    "--async-save": "--checkpoint: required with --keep, --keep-every or --async-save",
    "--keep 0": "argument --keep: must be a whole number of at least 1, not '0'",
    "--resume=0": "argument --resume: must be a whole number of at least 1, not '0'",
    "--resume=latest": "argument --resume: must be a whole number of at least 1, not 'latest'",
    "--log-every 0": "argument --log-every: must be a whole number of at least 1, not '0'",
    "--clipping": "--clipping: needs a norm to clip to: --clip NORM",
    "--weight-decay -1": "argument --weight-decay: must be a positive number, not '-1'",
    "--backend cpu --device cuda": "--device: only valid with --backend local; cuda uses all GPUs",
    "--clip 0": "argument --clip: must be a positive number, not '0'",
    "--patience never": "--task-timeout/--patience: must be a positive number, not 'never'",
    "--start-timeout 0": "argument --start-timeout: must be a positive number, not '0'",
    "--interface nowhere": "--interface: nowhere is not an interface of this machine: ",
    "--trace out.json --no-task-times": "--trace: needs the times of tasks: not with --no-task",
    "--trace out.json --cuda-graphs": "--trace: needs the times of tasks: not with --cuda-graphs",
    "--cuda-graphs": "--cuda-graphs: are for --backend cuda, or --backend local --device cuda",
    "--compile --tp 2": "--compile: tensor-parallel ranks of one process wait",
    "--compile --backend torch-pipelining --recompute none": "--compile: PyTorch's runtime runs",
    "--steps 0": "argument --steps: must be a whole number of at least 1, not '0'",
    "--precision float8": "argument --precision: invalid choice: 'float8'",
    "--backend tpu": "argument --backend: invalid choice: 'tpu'",
    "--device mps": "--device: must be cpu, cuda or cuda:N, not mps",
    "--hidden 8": f"--hidden: is decided by {MODEL}",
    "--loops 3 --stages-per-rank 2": "",
    "--loops 5": "--layers: 8 layers cannot be divided over 10 stages",
    "--sequence 4": "",
    "--model nothing.py:model": "--model: there is no Python file nothing.py",
    f"--model {MODEL}_": f"--model: {MODEL.rpartition(':')[0]} has no function regression_",
    "--model unheard-of": "unheard-of",
    "--layers 2 --hidden 30 --heads 4": "4 heads do not divide 30",
    "--layers 4 --text missing": "--text: missing: No such file or directory",
    "--checkpoint": "argument --checkpoint: expected one argument",
}


@pytest.mark.usefixtures("one_process")
def test_mfu_is_the_models_flops_over_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    """GEMMs of two layers and the output layer, and attention; three passes of each."""
    words = "--layers 2 --hidden 16 --heads 2 --context 8 --microbatch-size 1 --microbatches 2"
    ended = run_here(
        capsys, "1f1b", "--pp", "2", *words.split(), *LOCAL, "--steps", "3",
        "--cluster", "dgx-h100", "--json",
    )  # fmt: skip
    layer = 24 * 8 * 16**2 + 4 * 8**2 * 16
    flops = 2 * 3 * (2 * layer + 2 * 8 * 16 * 257)
    median = statistics.median(ended.record["elapsed_times"])
    assert ended.record["mfu"] * median == pytest.approx(flops / (2 * 67e12))


@pytest.mark.parametrize("options", BAD)
def test_bad_input_is_one_line(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_here(capsys, *SMALL, *LOCAL, *options.split())
    assert ended.code == 2
    assert ended.line.startswith("bfpp run: ")
    assert BAD[options] in ended.line


@pytest.mark.usefixtures("one_process")
def test_a_gpu_too_small_for_all_that_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four channels, of 8 blocks each: stages take turns on two ranks."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("bfpp.executor.devices.devices.multiprocessors_of", lambda _: 32)
    ended = run_here(capsys, *SMALL, "--backend", "cuda")
    assert ended.code == 2
    assert "--backend: kernels of communication may take 32 multiprocessors of r" in ended.errors


@pytest.mark.usefixtures("one_process")
def test_a_run_that_memory_cannot_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before it takes all memory there is, by whichever door, unless it is to be tried."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("bfpp.executor.devices.devices.memory_of", lambda _: 2.0**-2)
    monkeypatch.setattr("bfpp.executor.devices.devices.multiprocessors_of", lambda _: 132)
    kept = r"weights, gradients and states of the optimizer take .* GiB; this machine has"
    peak = r"the peak of a rank takes .* GiB; the GPU has"
    for backend, what in (("local", kept), ("cuda", peak)):
        ended = run_here(capsys, *SMALL, "--backend", backend)
        assert ended.code == 2
        assert re.fullmatch(rf"bfpp run: --memory-check: {what} .* GiB", ended.line)
    memory = {"cuda": 2.0**40, "cpu": 2.0**-2}
    monkeypatch.setattr("bfpp.executor.devices.devices.memory_of", lambda each: memory[each.type])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "one")
    made = r"bfpp run: --memory-check: making the model takes .* GiB; this machine has .* GiB"
    assert re.fullmatch(made, run_here(capsys, *SMALL, "--backend", "cuda").line)
    monkeypatch.setattr("bfpp.executor.devices.devices.memory_of", lambda _: 2.0**-2)
    monkeypatch.setattr("bfpp.executor.devices.devices.multiprocessors_of", lambda _: 132)
    with pytest.raises(bfpp.InvalidConfiguration, match=f"^memory_check: {kept}"):
        bfpp.train(MODEL, bfpp.Experiment("1f1b", pp=2, microbatches=2), steps=1)
    assert run_here(capsys, *SMALL, *LOCAL, "--no-memory-check").code == 0


def test_devices_that_are_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    gpus = run_here(capsys, *SMALL, "--backend", "cuda").line
    assert (
        gpus == "bfpp run: --backend: cuda takes a GPU for each of 2 ranks on this machine, not 1"
    )
    for name in ("cuda:3", "cuda:256"):  # torch would take the last one for its first GPU
        other = run_here(capsys, *SMALL, *LOCAL, "--device", name).line
        assert other == f"bfpp run: --device: {name} does not exist: this machine has 1 GPUs"


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("asked", "level"), [(None, "FATAL"), ("INFO", "INFO")])
def test_torchs_own_log_is_silent_unless_it_is_asked_for(
    asked: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    if asked:
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", asked)
    require_torch()
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == level


@pytest.mark.usefixtures("one_process")
def test_json_tells_all(capsys: pytest.CaptureFixture[str]) -> None:
    record = run_here(capsys, *SMALL, *LOCAL, "--verify", "--json").record
    assert record.keys() == KEYS | VERIFIED
    assert (record["schedule"], record["backend"]) == ("breadth-first", "local")
    assert len(record["losses"]) == len(record["step_times"]) == 3
    assert record["median_step_time"] == sorted(record["step_times"])[1]
    assert record["tokens_per_second"] == 16 / sorted(record["elapsed_times"])[1]
    assert record["reference_losses"] == pytest.approx(record["losses"], abs=1e-4)
    assert 0 <= record["max_weight_error"] <= record["tolerance"]["weight"]
    assert record["exact"] is True


@pytest.mark.usefixtures("one_process")
def test_offloaded_activations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an evaluation, which has none."""
    held_out, trace = tmp_path / "held-out.txt", tmp_path / "measured.json"
    held_out.write_bytes(bytes(range(256)))
    options = (
        "--layers", 4, "--hidden", 16, "--offload", "all", "--recompute", "none",
        "--evaluate-every", 2, "--evaluate-text", held_out, "--trace", trace, "--verify", "--json",
    )  # fmt: skip
    record = json.loads(run_here(capsys, *SMALL, *LOCAL, *options).output)
    assert record["exact"] is True
    for rank in record["memory"]:
        assert 0 < rank["host"] <= 1.01 * rank["predicted_host"]
        assert rank["parts"]["saved activations"] == pytest.approx(
            rank["predicted_parts"]["saved activations"], rel=0.01
        )
    assert all(held.copied.min() > 0 for held in read_timeline(trace.read_text()).memory)


@pytest.mark.usefixtures("one_process")
def test_the_table_and_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "measured.json"
    ended = run_here(capsys, *SMALL, *LOCAL, "--trace", trace)
    assert ended.code == 0
    assert ended.said == [f"wrote {trace}"]
    logged = [line for line in ended.errors.splitlines() if line.startswith("step ")]
    assert [line.partition(":")[0] for line in logged] == [f"step {at} of 3" for at in range(3)]
    assert ended.output.startswith("breadth-first: 2 ranks, 4 stages, 4 micro-batches\n")
    assert "0 to 2" in ended.output
    assert trace.stat().st_size


@pytest.mark.usefixtures("one_process")
def test_without_times_of_tasks_those_of_steps_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    straight = run_here(capsys, *SMALL, *LOCAL, "--json").record
    for backend in ("local", "cpu"):
        told = run_here(capsys, *SMALL, "--backend", backend, "--no-task-times", "--json").record
        assert told["losses"] == straight["losses"]
        times = zip(told["step_times"], told["elapsed_times"], strict=True)
        assert all(0 < step < elapsed for step, elapsed in times)


def test_a_trace_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "measured.json"
    trace.write_text("somebody's\n")
    ended = run_here(capsys, *SMALL, *LOCAL, "--trace", trace)
    assert (ended.code, ended.output) == (2, "")
    assert ended.line.startswith(
        f"bfpp run: --trace: {trace} already exists, and bfpp did not write it as timeline"
    )


@pytest.mark.usefixtures("one_process")
def test_the_same_command_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("1f1b", "--pp", 2, "--microbatches", 4, "--steps", 3, *LOCAL, "--json")
    transformer = ("--layers", 4, "--hidden", 16, "--heads", 2, "--context", 8, "--seed", 7)
    losses = [
        run_here(capsys, *options, *transformer, *more).record["losses"]
        for more in ((), (), ("--seed", 8))
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert os.environ.get("MASTER_PORT") is None
