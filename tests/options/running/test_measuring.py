"""The presets that provide what is not measured, by the names that GPUs give themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bfpp.options.running.measuring import LIKE, of_system
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.cluster.cluster import load_cluster
from tests.helpers.simumax_files import system

GPUS = {
    "NVIDIA GB300": "gb300-nvl72",
    "NVIDIA GB200": "gb200-nvl72",
    "NVIDIA B300 SXM6 AC": "dgx-b300",
    "NVIDIA B200": "dgx-b200",
    "NVIDIA H200": "dgx-h200",
    "NVIDIA H200 NVL": "dgx-h200",
    "NVIDIA H100 80GB HBM3": "dgx-h100",
    "NVIDIA H100 PCIe": "dgx-h100",
    "NVIDIA H800": "h800-3200g",
    "NVIDIA A100-SXM4-40GB": "dgx-a100-40gb",
    "NVIDIA A100-SXM4-80GB": "dgx-a100",
    "Tesla V100-SXM2-32GB": "dgx1-v100",
}
"""The driver's names for them."""


def test_every_preset_that_is_named_is_there() -> None:
    for name in LIKE.values():
        assert load_cluster(name).name == name
    assert {*LIKE.values()} == {*GPUS.values()}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("spelled", [str, str.lower])
def test_the_preset_of_a_gpu(gpu: str, spelled: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    record = {**system(), "sys_name": spelled(gpu)}
    record["accelerator"]["bandwidth"]["default"]["gbps"] = 800  # no more than that of any
    file.write_text(json.dumps(record))
    found = of_system(file)
    assert found.about == {"SimuMax": spelled(gpu), "like": GPUS[gpu]}
    assert of_system(file, "dgx-a100").about["like"] == "dgx-a100"


def test_a_gpu_that_no_preset_has(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    file.write_text(json.dumps({**system(), "sys_name": "a toaster"}))
    with pytest.raises(InvalidConfiguration, match="toaster") as refused:
        of_system(file)
    assert refused.value.field == "like"
    with pytest.raises(InvalidConfiguration) as refused:
        of_system(file, "none-such")
    assert refused.value.field == "like"
