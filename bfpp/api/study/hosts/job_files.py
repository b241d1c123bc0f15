"""Jobs that start a study on all of its hosts: by ssh, for SLURM, for Kubernetes.

Each host runs torchrun, and that the study, which goes on with what is measured already. A failure
on one host ends the processes of all. Then the job begins again, but for the third time with
nothing measured in between. torchrun takes its options from variables `PET_...`, too: those that
differ between hosts come so.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import NamedTuple

from bfpp.api.study.hosts.study_hosts import HostKind, StudyHosts
from bfpp.launchers.sources.documents import yaml_text

TITLE = "bfpp-study"

MARK = f"# {TITLE}: {{}} starts this file, which bfpp study --job wrote"

SHARED = "/shared"
"""Where pods have the volume that they share; they start there."""

RESTARTS = 6
"""Of each pod: three failures, each of which may end a pod twice before all are there again."""

LONGER = 3
"""The time limit of a job, as a multiple of what its study should take."""

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

AGAIN = """\
measured() { if [ -f "$journal" ]; then wc -l < "$journal"; else echo 0; fi; }
failures=0
while :; do
    before=$(measured)
    code=0
    attempt || code=$?
    [ "$code" -eq 0 ] && exit 0
    if [ "$(measured)" -gt "$before" ]; then failures=1; else failures=$((failures + 1)); fi
    [ "$failures" -lt 3 ] || exit "$code"
    echo "bfpp study: begun again, the cell under way too" >&2
done
"""


class JobPaths(NamedTuple):
    """The study's file, folder and journal, which all hosts have, and where to start."""

    grid: Path
    out: Path
    journal: str
    here: Path


def job_file(hosts: StudyHosts, paths: JobPaths, seconds: float | None) -> str:
    """The job that starts a study; SLURM's time limit follows from the `seconds`, if given.

    Raises `KeyError` for hosts that need none.
    """
    return JOB_FILES[hosts.where](hosts, paths, seconds)


def _words(hosts: StudyHosts, paths: JobPaths, python: str) -> list[str]:
    """The command of each host, but for its number and the first one's address."""
    torchrun = [python, "-m", "torch.distributed.run", "--nnodes", str(hosts.count)]
    own = ["--nproc-per-node", str(hosts.processes), "--master-port", str(hosts.port)]
    study = ["-m", "bfpp", "study", str(paths.grid), "--out", str(paths.out), "--resume"]
    return [*torchrun, *own, *study]


def _ssh(hosts: StudyHosts, paths: JobPaths, seconds: float | None) -> str:
    del seconds
    first = hosts.names[0].rpartition("@")[2]
    words = ["env", f"PET_MASTER_ADDR={first}", *_words(hosts, paths, sys.executable)]
    command = f"cd {shlex.quote(str(paths.here))} && exec {shlex.join(words)}"
    return f"""\
#!/bin/bash
{MARK.format("bash")}
set -u
journal={shlex.quote(str(paths.out / paths.journal))}
hosts=({shlex.join(hosts.names)})
command={shlex.quote(command)}
attempt() {{
    local number pid pids=() code=0
    for number in "${{!hosts[@]}}"; do
        ssh -o BatchMode=yes -o ServerAliveInterval=15 "${{hosts[number]}}" \\
            "export PET_NODE_RANK=$number; $command" < /dev/null &
        pids+=("$!")
    done
    for pid in "${{pids[@]}}"; do wait "$pid" || code=$?; done
    return "$code"
}}
{AGAIN}"""


def _slurm(hosts: StudyHosts, paths: JobPaths, seconds: float | None) -> str:
    limit = [] if seconds is None else [f"--time={ceil(LONGER * seconds / 60)}"]
    asked = [
        f"--job-name={TITLE}",
        f"--nodes={hosts.count}",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        *limit,
        *hosts.options,
    ]
    directives = "\n".join(f"#SBATCH {each}" for each in asked)
    words = shlex.join(_words(hosts, paths, sys.executable))
    return f"""\
#!/bin/bash
{MARK.format("sbatch")}
{directives}
set -u
journal={shlex.quote(str(paths.out / paths.journal))}
PET_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PET_MASTER_ADDR
attempt() {{
    srun --kill-on-bad-exit=1 --chdir={shlex.quote(str(paths.here))} \\
        bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' bash \\
        {words}
}}
{AGAIN}"""


def _kubernetes(hosts: StudyHosts, paths: JobPaths, seconds: float | None) -> str:
    del seconds
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": TITLE},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": TITLE},
            "ports": [{"name": "torchrun", "port": hosts.port}],
        },
    }
    container = {
        "name": "study",
        "image": hosts.image,
        "workingDir": SHARED,
        "command": _words(hosts, paths, "python"),
        "env": [
            {"name": "PET_MASTER_ADDR", "value": f"{TITLE}-0.{TITLE}"},
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        ],
        "volumeMounts": [{"name": "shared", "mountPath": SHARED}],
    }
    claim = {"name": "shared", "persistentVolumeClaim": {"claimName": hosts.claim}}
    pod = {
        "subdomain": TITLE,
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [claim],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": TITLE},
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts.count,
            "parallelism": hosts.count,
            "backoffLimit": RESTARTS * hosts.count,
            "template": {"spec": pod},
        },
    }
    return f"{MARK.format('kubectl apply -f')}\n{yaml_text([service, job])}"


JOB_FILES: dict[HostKind, Callable[[StudyHosts, JobPaths, float | None], str]] = {
    HostKind.SSH: _ssh,
    HostKind.SLURM: _slurm,
    HostKind.KUBERNETES: _kubernetes,
}
