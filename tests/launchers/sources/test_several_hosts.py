"""The job of the documentation for several hosts: what a cluster would start, and what is read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bfpp.launchers.sources.gpu_counts import gpu_count
from bfpp.launchers.sources.shell import read_script
from bfpp.terminal.command_table import with_options_of
from tests.helpers import ROOT

PAGE = (ROOT / "docs" / "how-to" / "several-hosts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(JOB,) = (block for block in BLOCKS if "#SBATCH" in block)

STAND_INS = {
    # What Slurm does: names of the job's hosts, and the command once on each of its nodes.
    "scontrol": 'printf "node%s\\n" $(seq 1 "$SLURM_NNODES")',
    "srun": (
        'for node in $(seq 0 $((SLURM_NNODES - 1))); do SLURM_NODEID=$node "$@" || exit; done'
    ),
    "torchrun": "printf '%s\\t' \"$@\"; echo",
}

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def in_bash(*words: str, path: Path | None = None, **variables: str) -> str:
    """What bash prints, with these commands before the system's."""
    found = f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin"
    ran = subprocess.run(
        [shutil.which("bash") or "bash", *words], env={"PATH": found, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout


@needs_bash
@pytest.mark.parametrize("block", BLOCKS)
def test_every_command_of_the_page_is_bash(block, tmp_path):
    (tmp_path / "block.sh").write_text(block)
    in_bash("-n", str(tmp_path / "block.sh"))


@pytest.fixture
def started(tmp_path) -> list[list[str]]:
    """The words of torchrun on each node, as the job starts it."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sbatch").write_text(JOB)
    nodes = read_script("job.sbatch", JOB).variables["SLURM_NNODES"]
    job = {"SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "node[1-4]"}
    lines = in_bash(str(tmp_path / "job.sbatch"), path=tmp_path, **job).splitlines()
    return [line.rstrip("\t").split("\t") for line in lines]


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@needs_bash
def test_each_node_starts_its_own_part_of_one_job(started):
    assert [after(words, "--node-rank") for words in started] == ["0", "1", "2", "3"]
    assert {after(words, "--nnodes") for words in started} == {"4"}
    assert {after(words, "--master-addr") for words in started} == {"node1"}
    assert len({tuple(words[words.index("bfpp") :]) for words in started}) == 1


@needs_bash
def test_a_run_has_as_many_ranks_as_processes(started):
    """By torchrun's options, and by our own parser of the command behind them."""
    words = started[0]
    parser, _ = with_options_of({"run"})
    run = parser.parse_args(words[words.index("bfpp") + 1 :])
    processes = int(after(words, "--nnodes")) * int(after(words, "--nproc-per-node"))
    assert (processes, int(run.pp) * int(run.dp)) == (8, 8)


@needs_bash
def test_our_reader_of_launch_scripts_sees_the_same(started):
    script = read_script("job.sbatch", JOB)
    (command,) = script.commands
    words = list(command.words)
    assert gpu_count(words[: words.index("bfpp")], script.variables).gpus == 8
    seen = words[words.index("torchrun") + 1 :]
    differ = {option for option, word in zip(seen, started[0], strict=True) if option != word}
    assert all(word.startswith("$") for word in differ), differ
    assert seen[-6:] == started[0][-6:]
