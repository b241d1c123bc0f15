"""Logs of MLPerf Training: what is read before a run is predicted, and after."""

from __future__ import annotations

import json

import pytest

from benchmarks.sim.blind.logs import Configuration, configuration, step_seconds

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


def test_step_times_that_are_logged_count():
    lines = log([9.0, SECONDS])
    for seconds in (30.0, 2.0, 2.2):
        statistics = {"key": "tracked_stats", "value": {"train_step_time": seconds}}
        lines.append(f":::MLLOG {json.dumps(statistics)}")
    assert step_seconds(lines) == 2.2
