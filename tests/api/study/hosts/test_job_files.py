"""Jobs that start a study: what shells and clusters take, and what they do when a host fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bfpp.api.study.hosts.job_files import JobPaths, job_file
from bfpp.api.study.hosts.study_hosts import HostKind, StudyHosts
from bfpp.api.study.journal import NAME
from tests.helpers.studies import written

HOSTS = {
    HostKind.SSH: StudyHosts(HostKind.SSH, 2, ("one", "me@other"), 4),
    HostKind.SLURM: StudyHosts(HostKind.SLURM, 2, processes=4, options=("--partition=gpu",)),
    HostKind.KUBERNETES: StudyHosts(HostKind.KUBERNETES, 2, processes=4, image="i", claim="c"),
}

FAKES = {
    "ssh": 'while [ "$1" = -o ]; do shift 2; done\necho "$1" >> hosts\nshift\nexec sh -c "$*"',
    "scontrol": "printf 'localhost\\nother\\n'",
    "srun": (
        'while [ "${1#--}" != "$1" ]; do shift; done\n'
        'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" & pids="$pids $!"; done\n'
        "code=0; for pid in $pids; do wait $pid || code=$?; done; exit $code"
    ),
}
"""Programs of a cluster whose hosts are all this machine."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with a space in its name, on a machine with these programs."""
    for name, text in FAKES.items():
        program(tmp_path / "bin" / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost,other")
    folder = tmp_path / "a study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def rendered(folder: Path, hosts: StudyHosts, seconds: float | None = None) -> Path:
    path = folder / "job"
    (folder / "out").mkdir(exist_ok=True)
    paths = JobPaths(folder / "grid.toml", folder / "out", NAME, folder)
    path.write_text(job_file(hosts, paths, seconds))
    return path


@pytest.mark.parametrize("kind", [HostKind.SSH, HostKind.SLURM])
def test_scripts_are_those_of_bash(kind, cluster):
    path = rendered(cluster, HOSTS[kind], 90.0)
    assert subprocess.run(["bash", "-n", path], capture_output=True, check=True).stderr == b""
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, "--severity=warning", path], check=True)


def test_slurm_reads_what_is_asked_for(cluster):
    """Before the first command, which ends what sbatch reads."""
    lines = rendered(cluster, HOSTS[HostKind.SLURM], 90.0).read_text().splitlines()
    end = next(at for at, line in enumerate(lines) if not line.startswith("#"))
    asked = [line.removeprefix("#SBATCH ") for line in lines[:end] if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--requeue", "--partition=gpu"} < {*asked}
    assert "--time=5" in asked
    untimed = rendered(cluster, HOSTS[HostKind.SLURM]).read_text()
    assert "--time" not in untimed


FIELDS: dict[str, Any] = {
    "Service": {
        "apiVersion": str, "kind": str, "metadata": {"name": str},
        "spec": {
            "clusterIP": str, "publishNotReadyAddresses": bool,
            "selector": {"batch.kubernetes.io/job-name": str},
            "ports": [{"name": str, "port": int}],
        },
    },
    "Job": {
        "apiVersion": str, "kind": str, "metadata": {"name": str},
        "spec": {
            "completionMode": str, "completions": int, "parallelism": int, "backoffLimit": int,
            "template": {"spec": {
                "subdomain": str, "restartPolicy": str,
                "containers": [{
                    "name": str, "image": str, "workingDir": str, "command": [str],
                    "env": [{"name": str}],
                    "volumeMounts": [{"name": str, "mountPath": str}],
                }],
                "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
            }},
        },
    },
}  # fmt: skip
"""Fields of Kubernetes' API, and their types."""


def require_fields(value: object, form: object) -> None:
    if isinstance(form, dict):
        assert isinstance(value, dict)
        assert form.keys() <= value.keys()
        extra = {"value", "valueFrom"} if form.keys() == {"name"} else set()
        assert value.keys() - form.keys() <= extra
        for name, each in form.items():
            require_fields(value[name], each)
    elif isinstance(form, list):
        assert isinstance(value, list)
        for each in value:
            require_fields(each, form[0])
    else:
        assert type(value) is form


def test_kubernetes_gets_a_service_and_an_indexed_job_that_fit_together(cluster):
    documents = yaml.safe_load_all(rendered(cluster, HOSTS[HostKind.KUBERNETES]).read_text())
    service, job = documents
    for each in (service, job):
        require_fields(each, FIELDS[each["kind"]])
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completions"] == spec["parallelism"] == 2
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    address, number = container["env"]
    # A pod of an indexed job is named by its number, within the domain of a headless service.
    assert address["value"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert "job-completion-index" in number["valueFrom"]["fieldRef"]["fieldPath"]
    assert container["command"][-1] == "--resume"
    assert container["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]


MEASURES, LATER = "echo >> out/steps.jsonl", "[ $(wc -l < calls) -gt 6 ]"
"""Shell of a host's program: it measures something; it is of the fourth attempt or a later one."""


@pytest.mark.parametrize("kind", [HostKind.SSH, HostKind.SLURM])
@pytest.mark.parametrize(
    ("ends", "attempts", "code"),
    [
        ("exit 0", 1, 0),
        ("exit 3", 3, 3),
        (f"{LATER} || {MEASURES}; exit 3", 5, 3),  # of which the last two measure nothing
        (f"{MEASURES}; {LATER}", 4, 0),  # the third would have been its last
    ],
)
def test_a_job_begins_again_until_nothing_is_measured_three_times(
    kind, ends, attempts, code, cluster, monkeypatch
):
    text = f'echo "$PET_NODE_RANK $PET_MASTER_ADDR $*" >> calls\n{ends}'
    monkeypatch.setattr(sys, "executable", str(program(cluster.parent / "bin" / "py", text)))
    ended = subprocess.run(["bash", rendered(cluster, HOSTS[kind])], check=False, timeout=60)
    calls = [line.split() for line in (cluster / "calls").read_text().splitlines()]
    assert (len(calls), ended.returncode) == (2 * attempts, code)
    assert sorted(number for number, *_ in calls) == ["0"] * attempts + ["1"] * attempts
    first_host = {HostKind.SSH: "one", HostKind.SLURM: "localhost"}[kind]
    assert {address for _, address, *_ in calls} == {first_host}
    if kind is HostKind.SSH:
        assert {*(cluster / "hosts").read_text().split()} == {"one", "me@other"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ssh", "slurm"])
def test_a_study_on_hosts_of_a_job_goes_on_after_a_failure(kind, cluster, bfpp):
    hosts: dict[str, Any] = {"where": kind, "port": 29521}
    hosts |= {"names": ["localhost", "127.0.0.1"]} if kind == "ssh" else {"count": 2}
    rule = {"steps": 2, "least": 3, "most": 3}
    written(cluster / "grid.toml", hosts=hosts, measuring=rule)
    assert bfpp("study", "grid.toml", "--out", "out", "--job", "job.sh")[0] == 0
    job = subprocess.Popen(["bash", "job.sh"], stderr=subprocess.PIPE, text=True)
    journal, deadline = cluster / "out" / NAME, time.monotonic() + 200
    while time.monotonic() < deadline and job.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) > 2:
            break
        time.sleep(0.1)
    kept = journal.read_text().splitlines()
    workers = subprocess.run(
        ["pgrep", "-f", f"bfpp study {cluster / 'grid.toml'}"], capture_output=True, check=True
    )
    last = workers.stdout.split()[-1]
    os.kill(int(last), signal.SIGKILL)
    _, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors
    assert "begun again" in errors
    lines = journal.read_text().splitlines()
    assert lines[: len(kept)] == kept
    assert len([json.loads(line) for line in lines[1:]]) == 4 * 3
