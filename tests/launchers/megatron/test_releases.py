"""Commands for older releases of Megatron-LM: no flag that they lack, and nothing lost in silence.

Facts of their own parsers (`megatron/training/arguments.py` at the tags `core_v0.14.0` to
`core_v0.19.0`); `tests/launchers/test_parsers.py` asks those themselves.
"""

from __future__ import annotations

from typing import Any

import pytest

from bfpp.launchers.frameworks import FRAMEWORKS, framework_config
from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.megatron.releases import OLDER, PRESENT, REFUSED, WRITTEN
from bfpp.launchers.releases import Number
from bfpp.launchers.sources.command_words import settings_of
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment

RELEASES = [(0, minor) for minor in range(14, 21)]


def flags_of(release: Number, **values: Any) -> tuple[set[str], tuple[str, ...]]:
    usual = {
        "model": "qwen3-30b-a3b", "cluster": "dgx-h100", "implementation": "current", "pp": 1,
        "dp": 8, "ep": 8, "microbatches": 2, "clipping": True, "sharding": "partial",
    }  # fmt: skip
    config = framework_config(Experiment("1f1b").changed(**usual | values), "megatron", release)
    words = config.text.replace("'", "").replace("\\\n", " ").split()
    return {*settings_of(words[2:])[0]}, config.missing


CASES: dict[str, tuple[dict[str, Any], list[set[str]]]] = {
    "dispatch by DeepEP": (
        {"dispatch": "deduplicated"},
        [*2 * [{"--moe-enable-deepep"}], *5 * [{"--moe-flex-dispatcher-backend"}]],
    ),
    "CUDA graphs": (
        {"cuda_graphs": True, "ep": 1},
        [{"--enable-cuda-graph"}, *6 * [{"--cuda-graph-impl"}]],
    ),
    "CUDA graphs with expert parallelism": (
        {"cuda_graphs": True},
        [{"--enable-cuda-graph"}, {"--cuda-graph-impl"}, set(), set(),
         *3 * [{"--cuda-graph-impl"}]],
    ),
    "CUDA graphs of what is computed again": (
        {"cuda_graphs": True, "ep": 1, "recompute": "full"},
        [set(), set(), *5 * [{"--cuda-graph-impl"}]],
    ),
    "experts in fp16": (
        {"precision": "fp16"}, [set(), set(), *5 * [{"--fp16", "--moe-grouped-gemm"}]],
    ),
    "offloading": (
        {"offload": "all", "offload_modules": "core_attn", "offload_share": 0.5},
        [set(), set(), *3 * [{"--offload-modules"}],
         *2 * [{"--offload-modules", "--activation-offload-fraction"}]],
    ),
    "positions and windows of GPT-OSS": (
        {"model": "gpt-oss-120b"},
        [set(), *4 * [{"--quick-geglu", "--window-size", "--softmax-type"}],
         *2 * [{"--quick-geglu", "--yarn-original-max-position-embeddings"}]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_release_has_its_own_flags(name: str) -> None:
    values, expected = CASES[name]
    newest, nothing = flags_of(RELEASES[-1], **values)
    assert nothing == ()
    for release, flags in zip(RELEASES, expected, strict=True):
        found, missing = flags_of(release, **values)
        assert flags <= found, release
        assert not {flag for flag, since in PRESENT.items() if release < since} & found
        assert missing or not newest - found - OLDER.keys(), release


def test_values_that_a_release_refuses_are_said() -> None:
    _, missing = flags_of((0, 15), precision="fp16", cuda_graphs=True, recompute="full")
    reasons = {each.reason for each in REFUSED if each.since <= (0, 15) < each.until}
    assert reasons == {each.partition(": ")[0] for each in missing}
    _, missing = flags_of((0, 17), model="gpt-oss-120b")
    assert "--position-embedding-type yarn: megatron-core 0.18 has it" in missing


@pytest.mark.parametrize("release", RELEASES)
def test_commands_for_older_releases_are_read_back(release: Number) -> None:
    experiment = Experiment("1f1b").changed(
        model="llama3-8b", cluster="dgx-h100", implementation="current", pp=1, tp=2, dp=4,
        microbatches=2, clipping=True, sharding="full", cuda_graphs=True,
    )  # fmt: skip
    text = framework_config(experiment, "megatron", release).text
    read = read_launch_file(" ".join(text.replace("\\\n", " ").split("\n"))).experiment
    assert (read.sharding, read.cuda_graphs) == ("full", True)


def test_releases_that_are_too_old_are_refused() -> None:
    assert FRAMEWORKS["megatron"].writers.keys() == {*WRITTEN}
    with pytest.raises(InvalidConfiguration, match=r"oldest of megatron-core .* is 0\.14"):
        flags_of((0, 13))
