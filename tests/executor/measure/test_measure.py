"""Constants of a cluster from what its kernels take: those that measurements were made with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.options.cluster_files import cluster_text
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.uncertainty import constants_spread
from bfpp.sim.measurements.calibration import calibrate, constants_of, with_constants
from bfpp.sim.measurements.least_squares import least_squares
from bfpp.sim.measurements.measured_kernels import Row, prediction_of
from bfpp.sim.measurements.simumax import System, read_system
from bfpp.sim.presets.files import preset_names
from tests.helpers.simumax_files import system

GPU_NAMES = ("dgx-a100", "dgx-h100", "dgx-b200")


def what_is_measured() -> list[Row]:
    """A few shapes of each kind, without seconds."""
    products = [
        {"kind": "product", "precision": "bf16", "batch": 1, "rows": r, "columns": c, "depth": d}
        for r, c, d in ((8192, 8192, 8192), (2048, 1024, 4096), (256, 4096, 4096))
    ]
    heads = {"kind": "attention", "batch": 1, "heads": 16, "kv_heads": 4, "causal": True}
    attention = [
        {**heads, "sequence": sequence, "width": width, "backward": backward}
        for sequence in (1024, 8192)
        for width in (64, 128)
        for backward in (False, True)
    ]
    return [
        *products,
        *attention,
        *({"kind": "streaming", "bytes": 4**power} for power in range(6, 15, 2)),
        *({"kind": "host", "kernels": kernels} for kernels in (100, 260)),
        *({"kind": "dispatch", "tasks": 37, "kernels": kernels} for kernels in (300, 1200)),
        *({"kind": "copy", "bytes": size} for size in (2**20, 2**28)),
        *({"kind": "transfer", "bytes": size} for size in (2**12, 2**28)),
        *(
            {"kind": "collective", "name": name, "members": members, "bytes": 2.0**power}
            for name in ("all-reduce", "all-gather", "reduce-scatter")
            for members in (2, 4, 8)
            for power in (12, 20, 30)
        ),
    ]


def measured(cluster: Cluster, rows: list[Row], noise: float = 0.0) -> list[Row]:
    """The rows with the seconds that a cluster takes, some more and some less."""
    chance = np.random.default_rng(0)
    return [
        {**row, "seconds": prediction_of(row)(cluster) * float(np.exp(chance.normal(0, noise)))}
        for row in rows
    ]


def known(name: str) -> Cluster:
    """A preset that also says what presets leave out."""
    cluster = load_cluster(name)
    first = replace(cluster.levels[0], transfer_efficiency=0.8, transfer_latency=7e-6)
    device = replace(cluster.device, host_bandwidth=5e10, dispatch_seconds=1e-4)
    return replace(cluster, device=device, levels=(first, *cluster.levels[1:]))


shares = st.floats(0.3, 0.9)
seconds = st.floats(1e-6, 3e-5)


@settings(max_examples=8)
@given(st.sampled_from(GPU_NAMES), shares, shares, shares, seconds, seconds, st.floats(1e-4, 1e-3))
def test_the_constants_that_measurements_were_made_with_are_found(
    name, products, memory, attention, launch, host, dispatch
):
    cluster = known(name)
    paths = {
        ("device", "matmul_efficiency"): products,
        ("device", "memory_efficiency"): memory,
        ("device", "attention", "forward_efficiency"): attention,
        ("device", "launch_seconds"): launch,
        ("device", "host_seconds"): host,
        ("device", "dispatch_seconds"): dispatch,
    }
    changed = with_constants(cluster, paths)
    rows = measured(changed, what_is_measured())
    found = calibrate(cluster, rows)
    assert {each.path for each in found.constants} == {*constants_of(cluster, rows)}
    for path, value in paths.items():
        assert {each.path: each.value for each in found.constants}[path] == pytest.approx(value)
    assert found.ratios == pytest.approx([1.0] * len(rows))


def test_standard_errors_are_those_of_repeated_measurements():
    """Of many tables that differ in their noise alone, the values scatter as each one says."""
    cluster, noise = known("dgx-h100"), 0.1
    rows = [row for row in what_is_measured() if row["kind"] in ("product", "streaming")] * 3
    chance, values, errors = np.random.default_rng(1), [], []
    exact = measured(cluster, rows)
    for _ in range(40):
        noisy = [{**row, "seconds": row["seconds"] * chance.lognormal(0, noise)} for row in exact]
        constant = calibrate(cluster, noisy).constants[0]
        values.append(np.log(constant.value))
        errors.append(constant.deviation)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)


def test_what_no_measurement_depends_on_stays():
    cluster = known("dgx-h100")
    rows = [row for row in what_is_measured() if row["kind"] == "collective"]
    few = [row for row in rows if row["members"] == 2 and row["bytes"] < 2**13]
    found = calibrate(cluster, measured(cluster, few))
    assert found.cluster.levels[0].switch_bandwidth == cluster.levels[0].switch_bandwidth
    assert ("nvlink", "switch_bandwidth") not in {each.path for each in found.constants}


def test_a_device_is_not_faster_than_its_peaks():
    cluster = known("dgx-h100")
    faster = replace(cluster, device=replace(cluster.device, peak=4 * cluster.device.peak))
    with pytest.raises(InvalidInput, match=r"device.matmul_efficiency would be 3.21: faster"):
        calibrate(cluster, measured(faster, what_is_measured()[:3]))
    with pytest.raises(InvalidInput, match="no measurements"):
        calibrate(cluster, [])


def test_the_sustained_rate_is_that_of_later_windows():
    cluster = load_cluster("dgx-h100")
    rate = 0.5 * cluster.device.peak
    windows = [0.5, 0.5, 1.0, 1.0]
    row = {"kind": "sustained", "flops": rate, "windows": windows}
    found = calibrate(cluster, [*measured(cluster, what_is_measured()[:3]), row])
    assert found.cluster.device.sustained_efficiency == pytest.approx(0.5)
    assert found.ratios[-1] is None


def test_least_squares_of_a_line():
    amounts = np.array([1.0, 2.0, 3.0, 4.0])

    def residuals(at):
        return np.exp(at[0]) + np.exp(at[1]) * amounts - (0.5 + 2 * amounts)

    at, deviations = least_squares(residuals, np.zeros(3))
    assert np.exp(at[:2]) == pytest.approx([0.5, 2.0])
    assert np.isinf(deviations[2])


# Cluster files


@pytest.mark.parametrize("name", preset_names("cluster"))
def test_a_cluster_reads_back_as_it_is(tmp_path, name):
    cluster = load_cluster(name)
    deviations = (
        (("device", "attention", "forward_efficiency"), 0.02),
        (("device", "matmul_efficiency"), 0.01),
        ((cluster.levels[0].name, "bandwidth"), 0.03),
    )
    odd = replace(cluster.levels[-1], name="all racks")
    cluster = replace(cluster, deviations=deviations, levels=(*cluster.levels[:-1], odd))
    path = tmp_path / f"{name}.toml"
    path.write_text(cluster_text(cluster, ["of a test"]))
    assert load_cluster(str(path)) == cluster


def test_what_was_measured_is_as_sure_as_it_was_measured():
    """A standard error of nothing, or of much, in the place of the usual deviation."""

    def spread(**sure):
        cluster = load_cluster("dgx-h100")
        deviations = [(("device", name), value) for name, value in sure.items()]
        deviations += [((level.name, "ring_efficiency"), 1e-9) for level in cluster.levels]
        cluster = replace(cluster, deviations=tuple(sorted(deviations)))
        experiment = Experiment(
            "1f1b", pp=4, microbatches=8, model="llama3-8b", cluster=cluster,
            implementation="current",
        )  # fmt: skip
        return constants_spread(simulate(experiment.graph(), experiment.costs), experiment.physical)

    usual, surer, doubtful = spread(), spread(matmul_efficiency=1e-6), spread(matmul_efficiency=0.3)
    assert surer.slower < usual.slower < doubtful.slower
    assert doubtful.slower > 0.15


@pytest.mark.parametrize(
    "line",
    [
        "[deviations.device]\nspeed = 0.1",
        "[deviations.device]\nreads_columns = 0.1",
        "[deviations.leaf]\nsize = -1",
    ],
)
def test_deviations_are_of_what_a_cluster_has(tmp_path, line):
    path = tmp_path / "odd.toml"
    path.write_text(cluster_text(load_cluster("dgx-h100"), []) + line + "\n")
    with pytest.raises(InvalidConfiguration, match="deviations"):
        load_cluster(str(path))


# Measured here


@pytest.fixture
def record(bfpp):
    """A command's output with --json, and the file that it names."""

    def run(*words):
        code, out, err = bfpp(*words, "--json")
        assert (code, err) == (0, f"wrote {words[-1]}\n")
        return json.loads(out)

    return run


# fmt: off
COLUMNS = {  # beside the kind, and what is predicted
    "streaming": {"name", "bytes", "seconds"},
    "product": {"name", "precision", "batch", "rows", "columns", "depth", "seconds"},
    "attention": {
        *("library", "backward", "batch", "heads", "kv_heads", "sequence", "width", "causal"),
        "seconds",
    },
    "host": {"pass", "kernels", "seconds"},
    "dispatch": {"activations", "kernels", "tasks", "seconds"},
    "sustained": {"flops", "windows"},
}
# fmt: on


def test_a_cpu_is_measured(tmp_path, monkeypatch, record):
    microbenchmarks = pytest.importorskip("bfpp.executor.measure")
    quick = replace(microbenchmarks.ON_CPU, repetitions=3, launches=2, steps=1)
    monkeypatch.setattr(microbenchmarks, "ON_CPU", quick)
    out = tmp_path / "mine.toml"
    found = record("measure", "--device", "cpu", "--like", "dgx-a100", "--out", out)
    rows = found["measurements"]
    assert {row["kind"] for row in rows} == COLUMNS.keys()
    for row in rows:
        assert row.keys() - {"kind", "predicted_over_measured"} == COLUMNS[row["kind"]], row["kind"]
    assert {row["pass"] for row in rows if row["kind"] == "host"} == {"forward", "backward"}
    assert all(row["seconds"] > 0 for row in found["measurements"] if "seconds" in row)
    cluster = load_cluster(str(out))
    values = {each["name"]: each["value"] for each in found["constants"]}
    efficiency = cluster.device.matmul_efficiency
    assert efficiency == pytest.approx(values["device.matmul_efficiency"], rel=1e-5)
    assert cluster.levels == load_cluster("dgx-a100").levels


def test_attention_without_a_kernel_is_left_out_and_without_memory_is_not(monkeypatch):
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("bfpp.executor.measure.kernels")
    design = pytest.importorskip("bfpp.executor.measure").ON_CPU
    clock = SimpleNamespace(on_gpu=False)

    def raises(error):
        def attention(*_):
            raise error

        monkeypatch.setattr(kernels, "_attention", attention)

    raises(RuntimeError("No available kernel. Aborting execution."))
    assert not [*kernels.attention(clock, design)]
    raises(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        [*kernels.attention(clock, design)]


def test_each_exchange_of_each_size_is_timed():
    pytest.importorskip("torch")
    measured = import_module("bfpp.executor.measure.collectives")
    launch = import_module("bfpp.executor.processes").launch
    sizes = (256, 4096)
    rows = launch(measured.collectives, measured.Exchanges(sizes, False, 1), 2)
    assert [(row["kind"], row.get("name"), row.get("members"), row["bytes"]) for row in rows] == [
        *(("collective", name, 2, size) for name in measured.COLLECTIVES for size in sizes),
        *(("transfer", None, None, size) for size in sizes),
    ]
    assert all(0 < row["seconds"] < 1 for row in rows)


@pytest.mark.slow
def test_links_among_processes_are_measured(tmp_path, record):
    pytest.importorskip("torch")
    out = tmp_path / "mine.toml"
    words = ("--device", "cpu", "--members", 2, "--like", "dgx-a100", "--out", out)
    found = record("measure", *words)
    rows = [row for row in found["measurements"] if row["kind"] in ("collective", "transfer")]
    assert {row.get("name") for row in rows} == {"all-reduce", "all-gather", "reduce-scatter", None}
    assert all(row["seconds"] > 0 for row in rows)
    usual = load_cluster("dgx-a100").levels
    levels = load_cluster(str(out)).levels
    assert levels[0].bandwidth < usual[0].bandwidth
    assert levels[1:] == usual[1:]


def test_what_is_not_here_is_not_measured(bfpp, tmp_path):
    pytest.importorskip("torch")
    system_file = tmp_path / "system.json"
    system_file.write_text(json.dumps(system()))
    for options, reason in (
        ("--device cuda:99", "--device: cuda:99 does not exist"),
        ("--device tpu", "--device: must be cpu, cuda or cuda:N"),
        ("--device cpu:1", "--device: must be cpu, cuda or cuda:N"),
        ("--device cpu", "--like: must be given"),
        ("--device cpu --like none-such", "--like: 'none-such' is neither a preset"),
        (f"--simumax {tmp_path}", f"--simumax: {tmp_path}: Is a directory"),
        (f"--simumax {system_file} --like none-such", "--like: 'none-such' is neither a preset"),
        *(
            (f"--simumax {system_file} {option}", f"--simumax: .*: not with {option.split()[0]}")
            for option in ("--device cpu", "--quick", "--members 2")
        ),
    ):
        code, out, err = bfpp("measure", "--out", tmp_path / "mine.toml", *options.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert re.match(f"bfpp measure: {reason}", err)
    assert [*tmp_path.iterdir()] == [system_file]


@pytest.mark.parametrize("fails", [True, False])
def test_only_the_first_process_writes_and_one_that_fails_is_named(
    tmp_path, monkeypatch, bfpp, fails
):
    microbenchmarks = pytest.importorskip("bfpp.executor.measure")
    from bfpp.executor.processes import RunFailed

    def links(*_):
        if fails:
            raise RunFailed(1, "process 1 died", "")

    monkeypatch.setattr(microbenchmarks, "measure_links", links)
    words = ("--device", "cpu", "--members", 2, "--like", "dgx-a100", "--out", tmp_path / "my.toml")
    reason = "bfpp measure: process 1 died\n" if fails else ""
    assert bfpp("measure", *words) == (int(fails), "", reason)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("cuBLAS: no such kernel\nException raised from here", "cuBLAS: no such kernel"),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB",
            "out of memory: tried to allocate 2 GiB",
        ),
    ],
)
def test_a_kernel_that_cannot_run_is_named_in_a_line(tmp_path, monkeypatch, bfpp, error, reason):
    microbenchmarks = pytest.importorskip("bfpp.executor.measure")

    def products(*_):
        raise RuntimeError(error)

    monkeypatch.setattr(microbenchmarks, "PARTS", (products,))
    words = ("--device", "cpu", "--like", "dgx-a100", "--out", tmp_path / "my.toml")
    code, out, err = bfpp("measure", *words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"bfpp measure: products: {reason}")
    assert not [*tmp_path.iterdir()]


def test_under_torchrun_links_are_those_of_its_processes(monkeypatch):
    microbenchmarks = pytest.importorskip("bfpp.executor.measure")
    from bfpp.executor.devices.devices import device_named
    from bfpp.executor.processes.environment import TORCHRUN

    cpu = device_named("cpu")
    assert microbenchmarks.members_of(cpu) == 1
    for name in TORCHRUN:
        monkeypatch.setenv(name, "3")
    assert microbenchmarks.members_of(cpu) == 3


# SimuMax


@pytest.mark.parametrize("pcie", [False, True])
def test_a_system_file_is_fitted(tmp_path, record, pcie):
    path, out = tmp_path / "system.json", tmp_path / "theirs.toml"
    path.write_text(json.dumps(system(pcie=pcie)))
    found = record("measure", "--simumax", path, "--out", out)
    cluster = load_cluster(str(out))
    assert found["about"] == {"SimuMax": "a100_of_ours", "like": "dgx-a100"}
    assert cluster.gpus_per_node == 4
    assert [level.link for level in cluster.levels] == ["pcie" if pcie else "nvlink", "network"]
    assert cluster.levels[1].bandwidth == pytest.approx(100 * 2**30 / 4, rel=1e-5)
    device = cluster.device
    assert device.memory_bandwidth * device.memory_efficiency == pytest.approx(
        1600 * 2**30 * 0.9, rel=1e-5
    )
    assert 0.6 < device.matmul_efficiency < 0.9
    # Counted with what is masked, forward passes reach about 1.05 of the peak; half is computed.
    assert 0.4 < device.attention.forward_efficiency < 0.7
    assert device.attention.uneven_heads < 1


def test_measurements_of_a_system_file_are_its_seconds():
    rows = [*System("ours", system()).rows()]
    square = next(row for row in rows if row["kind"] == "product" and row["columns"] == 4096)
    assert square["seconds"] == pytest.approx(2 * 4096**3 / (0.7 * 312e12))
    sent = next(row for row in rows if row.get("name") == "all-reduce" and row["members"] == 4)
    moved = 2 * 3 / 4 * sent["bytes"] / (0.7 * 200 * 2**30)
    assert sent["seconds"] == pytest.approx(6 * 5e-6 + moved)


def test_a_system_file_says_what_it_lacks(tmp_path):
    without = system()
    del without["accelerator"]["bandwidth"]["default"]["gbps"]
    path = tmp_path / "system.json"
    path.write_text(json.dumps(without))
    with pytest.raises(InvalidConfiguration, match=r"bandwidth\.default\.gbps' is missing"):
        read_system(path).cluster(load_cluster("dgx-a100"))
    path.write_text("[]")
    with pytest.raises(InvalidConfiguration, match="num_per_node"):
        read_system(path)
