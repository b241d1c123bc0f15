"""Files that we write, under the own parsers of frameworks, in checkouts that are named.

`BFPP_MEGATRON_LM` and `BFPP_TORCHTITAN`: folders of the versions to try.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from benchmarks.launchers.launch_files import checkout
from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.releases import Number
from bfpp.launchers.torchtitan.command import COUNTS_TOKENS, SINCE
from bfpp.schedules import InvalidInput
from bfpp.sim.experiment.experiment import Experiment
from tests.helpers.foreign_modules import answers
from tests.helpers.launched_experiments import of_megatron, of_torchtitan

MEGATRON, TITAN = checkout("BFPP_MEGATRON_LM"), checkout("BFPP_TORCHTITAN")

EXAMPLES = 300

YOURS = ["--tokenizer-type", "NullTokenizer", "--mock-data", "--lr", "1e-4", "--train-iters", "10"]
"""The user's to add: what the first comment of a command says."""


def written(
    strategy: st.SearchStrategy[Experiment],
    framework: str,
    release: Number | None = None,
    *,
    whole: bool = True,
) -> list[tuple[int, str]]:
    """The GPUs and launch files of experiments, which a framework can say as a `whole`."""
    found: list[tuple[int, str]] = []

    @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], derandomize=True)
    @given(strategy)
    def write(experiment: Experiment) -> None:
        try:
            config = framework_config(experiment, framework, release)
        except InvalidInput:
            reject()
        assert not (whole and config.missing)
        found.append((experiment.configuration.degrees.devices, config.text))

    write()
    return found


def refused(parser: str, folder: object, commands: list[tuple[int, str]]) -> dict[str, str]:
    """The commands that a parser refuses, by its errors; it refuses an invented option."""
    questions = []
    for gpus, text in commands:
        words = shlex.split(text.replace("\\\n", " "))
        program = next(word for word in words if word in PROGRAMS)
        questions.append({"gpus": gpus, "flags": words[words.index(program) + 1 :]})
    invented = {**questions[0], "flags": ["--invented", "3", *questions[0]["flags"]]}
    *every, last = answers(f"tests.helpers.{parser}", [str(folder)], [*questions, invented])
    assert "invented" in last["error"]
    return {
        answer["error"]: text
        for (_, text), answer in zip(commands, every, strict=True)
        if answer["error"]
    }


PROGRAMS = ("pretrain_gpt.py", "torchtitan.train")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(MEGATRON is None, reason="BFPP_MEGATRON_LM names no checkout")
def test_megatron_lm_takes_every_command() -> None:
    yours = " --tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10"
    release = megatron_release(MEGATRON or Path())
    commands = [
        (gpus, text.rstrip() + yours)
        for gpus, text in written(of_megatron(), "megatron", release, whole=release >= NEWEST)
    ]
    assert refused("megatron_parser", MEGATRON, commands) == {}
    assert len(commands) >= EXAMPLES * 0.9


NEWEST = (0, 19)
"""The first release that takes all of what we write."""


def megatron_release(folder: Path) -> Number:
    """The release of megatron-core in a checkout."""
    text = (folder / "megatron/core/package_info.py").read_text(encoding="utf-8")
    major, minor = (int(re.findall(rf"{part} = ([0-9]+)", text)[0]) for part in ("MAJOR", "MINOR"))
    return major, minor


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(TITAN is None, reason="BFPP_TORCHTITAN names no checkout")
def test_torchtitan_takes_every_command() -> None:
    assert TITAN is not None
    pytest.importorskip("tyro")
    configs = TITAN.joinpath("torchtitan", "config", "configs.py").read_text()
    release = COUNTS_TOKENS if "num_tokens_per_train_step" in configs else SINCE
    commands = written(of_torchtitan(toml=False), "torchtitan", release)
    assert refused("torchtitan_parser", TITAN, commands) == {}
    assert len(commands) >= EXAMPLES * 0.9
