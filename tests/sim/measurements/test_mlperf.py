"""Logs of MLPerf Training: what is read before a run is predicted, and after."""

from __future__ import annotations

import json

import pytest

from benchmarks.sim.mlperf import Configuration, configuration, main, step_seconds

BATCH, ACCUMULATION = 256, 4
SECONDS = 2.5


def log(durations, samples=10 * BATCH):
    """A log of blocks that take as many seconds a step, with other output in between."""
    facts = {
        "submission_org": "us",
        "submission_platform": "8xours",
        "submission_benchmark": "gpt3",
        "global_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
    }
    system = {"number_of_nodes": "2", "accelerators_per_node": "8", "accelerator_model_name": "X"}
    now, count, found = 0.0, 0, [f":::SYSJSON {json.dumps(system)} "]

    def event(key, value=None, **metadata):
        line = {"key": key, "value": value, "time_ms": round(1000 * now), "metadata": metadata}
        found.append(f"0: :::MLLOG {json.dumps(line)}")

    for key, value in facts.items():
        event(key, value)
    found.append("nccl says something")
    event("run_start")
    for seconds in durations:
        event("block_start", samples_count=count)
        now, count = now + seconds * samples / BATCH, count + samples
        event("block_stop", samples_count=count)
        event("eval_start")
        now += 1.0
    return found


def test_the_configuration_is_what_a_log_says_before_its_run():
    lines = log([SECONDS])
    expected = Configuration("us", "8xours", "gpt3", BATCH, ACCUMULATION, "X", 16)
    assert configuration(lines) == expected
    begins = next(at for at, line in enumerate(lines) if "run_start" in line)
    assert configuration([*lines[: begins + 1], "0: :::MLLOG no JSON: never read"]) == expected


@pytest.mark.parametrize("durations", [[SECONDS], [9.0, SECONDS], [9.0, SECONDS, 2.0, 40.0]])
def test_step_times_leave_out_the_first_block_and_evaluations(durations):
    assert step_seconds(log(durations)) == pytest.approx(SECONDS)


def test_samples_that_are_counted_in_tokens():
    """As of GPT-3 in round 4.0: 51,904,512 tokens of 2,048 a sample in 119.94 s are 12.4 steps."""
    facts = {"submission_org": "", "submission_platform": "", "submission_benchmark": "gpt3"}
    facts |= {"global_batch_size": 2048, "max_sequence_length": 2048}
    lines = [{"key": key, "value": value} for key, value in facts.items()]
    tokens = {"epoch_count": 51904512}
    lines.append({"key": "run_start"})
    lines.append({"key": "block_start", "time_ms": 0, "metadata": tokens})
    lines.append({"key": "block_stop", "time_ms": 119_940, "metadata": tokens})
    found = step_seconds([f":::MLLOG {json.dumps(each)}" for each in lines])
    assert found == pytest.approx(119.94 / 12.375)


def test_tables_of_a_folder_of_logs(tmp_path, capsys):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "result_0.txt").write_text("\n".join(log([9.0, SECONDS])))
    main(["configurations", str(tmp_path)])
    header, row = capsys.readouterr().out.splitlines()
    assert header == "log,organisation,platform,benchmark,batch,accumulation,accelerator,devices"
    assert row == f"ours/result_0.txt,us,8xours,gpt3,{BATCH},{ACCUMULATION},X,16"
    main(["results", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[1] == f"ours/result_0.txt,{SECONDS}"
    for words in ([], ["guesses", str(tmp_path)], ["results", str(tmp_path / "none")]):
        with pytest.raises(SystemExit):
            main(words)
