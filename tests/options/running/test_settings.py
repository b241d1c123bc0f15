"""The options of a run as settings of its job."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bfpp.commands.run import add_arguments, job_of_options
from bfpp.executor.settings import Activations, DType
from bfpp.executor.train.job import Job
from bfpp.schedules import InvalidConfiguration
from bfpp.terminal.parser import Parser

FILE = """
format = "bfpp experiment 1"
schedule = "1f1b"
pp = 2
microbatches = 4
"""
USUAL = 4, DType.FLOAT32, Activations.RECOMPUTE


def job_of(*words: object) -> Job:
    parser = Parser()
    add_arguments(parser)
    sizes = "--layers", "4", "--hidden", "32", "--context", "16", "--steps", "1"
    options: argparse.Namespace = parser.parse([*map(str, words), *sizes])
    return job_of_options(options)


def settings_of(*words: object) -> tuple[int, DType, Activations]:
    job = job_of(*words)
    return job.microbatch_size, job.precision, job.activations


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(f'{FILE}microbatch_size = 2\nprecision = "bf16"\nrecompute = "none"\n')
    return path


def test_an_experiments_file_is_trained_as_it_says(file: Path) -> None:
    assert settings_of(file) == (2, DType.BFLOAT16, Activations.KEEP)


def test_options_come_before_the_file(file: Path) -> None:
    words = "--microbatch-size", 4, "--precision", "fp32", "--recompute", "full"
    assert settings_of(file, *words) == USUAL


def test_what_no_file_says_is_as_usual(file: Path) -> None:
    assert settings_of("1f1b", "--pp", 2, "--microbatches", 4) == USUAL
    file.write_text(FILE)
    assert settings_of(file)[1:] == USUAL[1:]


def test_a_precision_that_can_be_simulated_only(file: Path) -> None:
    file.write_text(f'{FILE}precision = "fp8"\n')
    with pytest.raises(InvalidConfiguration, match="'fp8' is not one of"):
        settings_of(file)
    assert settings_of(file, "--precision", "bf16")[1] is DType.BFLOAT16
