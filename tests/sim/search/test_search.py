"""The search: what it enumerates, how it ranks, what it keeps, and where it runs."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, product
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bfpp.api.workers import PASSES, WORTH, Workers
from bfpp.command_line import main
from bfpp.commands import search
from bfpp.options.experiment_file import read_experiment
from bfpp.options.search import problem_of
from bfpp.reports.search.results import Journal
from bfpp.schedules import Degrees, InvalidConfiguration, Sharding
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.models.model import load_model
from bfpp.sim.search import evaluation
from bfpp.sim.search.bounds import bounds_of, closer_bounds
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.outcomes import outcome_of
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.pruning import (
    TOO_LARGE,
    TOO_SLOW,
    Request,
    evaluate_best,
    most_promising_first,
    nearest_of,
)
from bfpp.sim.search.ranking import nearest, pareto, ranked
from bfpp.sim.search.space import CostSetting
from bfpp.sim.search.workers import (
    LOSSES,
    SERVER,
    Here,
    JobQueue,
    as_completed,
    executor,
)
from bfpp.terminal.interrupts import INTERRUPTED
from bfpp.terminal.parser import Parser
from bfpp.traces.timeline.units import GIGABYTE
from tests.helpers.fork_server import stop_server

ALL = ("gpipe", "1f1b", "depth-first", "breadth-first")
SMALL = replace(load_model("bert-6.6b"), layers=4, name="small")
PROBLEM = Problem(SMALL, load_cluster("dgx1-v100"), (8,), (16,), ALL)

WAITS = """\
import os, time
from bfpp.sim.search.workers import executor

with executor("local", 1) as workers:
    print(workers.submit(os.getpid).result(), flush=True)
    time.sleep(3600)
"""


@pytest.fixture(scope="module")
def outcomes():
    return evaluate(PROBLEM, configurations(PROBLEM))


def test_every_configuration_divides_everything():
    found = configurations(PROBLEM)
    assert len(found) == len(set(found))
    for each in found:
        assert each.degrees.devices == 8
        assert each.batch == 16
        assert SMALL.layers % each.layout.units == 0
        assert each.communication.sharding is Sharding.NONE or each.degrees.dp > 1
        if sequence := each.schedule.parameters.get("sequence"):
            assert each.microbatches % sequence == 0
            assert sequence >= each.degrees.pp


def test_no_group_sizes_are_left_out():
    powers = [1, 2, 4, 8]
    groups = {
        (tp, pp, 8 // (tp * pp)) for tp, pp in product(powers, repeat=2) if tp * pp <= 8 and pp <= 4
    }
    found = {each.degrees for each in configurations(PROBLEM)}
    assert found == {Degrees(pp=pp, tp=tp, dp=dp) for tp, pp, dp in groups}
    flat = replace(PROBLEM.cluster, levels=PROBLEM.cluster.levels[1:])
    everywhere = configurations(replace(PROBLEM, cluster=flat, gpus=(16,)))
    assert {each.degrees.tp for each in everywhere} == {*powers, 16}


def test_tensor_parallel_groups_are_as_large_as_an_nvlink_domain_holds():
    def sizes(cluster):
        problem = replace(
            PROBLEM, cluster=load_cluster(cluster), gpus=(64,), implementation=CURRENT
        )
        return {each.degrees.tp for each in configurations(problem)}

    assert sizes("gb200-nvl72") == {1, 2, 4, 8, 16, 32}  # of 32 heads
    assert sizes("dgx-h100") == {1, 2, 4, 8}


def test_neighbours_share_a_graph_and_any_communication_the_order(monkeypatch, outcomes):
    ordered, lowered = [], []
    order, lower = evaluation._steps, evaluation.lower_steps
    monkeypatch.setattr(
        evaluation, "_steps", lambda *stages: ordered.append(stages) or order(*stages)
    )
    monkeypatch.setattr(
        evaluation, "lower_steps", lambda *graph: lowered.append(graph) or lower(*graph)
    )
    known = evaluation.Evaluation(PROBLEM)
    assert list(known.outcomes(outcomes.space)) == list(outcomes)
    assert len(ordered) == len(set(ordered)) < len(lowered) < len(outcomes)


def test_the_ranking_is_of_those_that_fit(outcomes):
    best_first = ranked(outcomes)
    assert all(each.fits for each in best_first)
    speeds = [each.samples_per_second for each in best_first]
    assert speeds == sorted(speeds, reverse=True)
    front = pareto(best_first)
    assert front[0] == best_first[0]
    for each in best_first:
        assert any(
            other.samples_per_second >= each.samples_per_second
            and other.memory_largest_gb <= each.memory_largest_gb
            for other in front
        )


@pytest.mark.parametrize("apart", [0.01, 0.1])
def test_a_coarser_front_leaves_out_what_saves_little(outcomes, apart):
    best_first = ranked(outcomes)
    front, coarse = pareto(best_first), pareto(best_first, apart)
    least = apart * best_first[0].device_memory_gb
    held = [each.memory_largest_gb for each in coarse]
    assert coarse[0] == front[0]
    assert len(coarse) < len(front)
    assert all(less < more - least for more, less in pairwise(held))
    for each in front:
        assert each in coarse or any(
            other.samples_per_second >= each.samples_per_second
            and other.memory_largest_gb <= (each.memory_largest_gb + least) * (1 + 1e-9)
            for other in coarse
        )


def test_records_can_be_read_again(outcomes):
    for outcome in outcomes[:20]:
        assert outcome_of(json.loads(json.dumps(outcome.whole_record))) == outcome


def with_memory(size):
    """The problem, with devices of another size of memory."""
    device = replace(PROBLEM.cluster.device, memory=size)
    return replace(PROBLEM, cluster=replace(PROBLEM.cluster, device=device))


@pytest.mark.parametrize("top", [1, 5, 1000])
@pytest.mark.parametrize("memory", [8, 3])
def test_the_best_are_found_without_the_others(top, memory):
    """As if all were simulated; and nothing is left out for a wrong reason."""
    problem = with_memory(memory * GIGABYTE)
    chosen = configurations(problem)
    outcomes = evaluate(problem, chosen)
    every = {each.configuration: each for each in outcomes}
    best_first = ranked(outcomes)
    found = evaluate_best(problem, most_promising_first(problem, chosen), Request(top))
    assert list(ranked(found.outcomes)[:top]) == list(best_first[:top])
    assert list(pareto(ranked(found.outcomes))) == list(pareto(best_first))
    assert len(found.outcomes) + found.excluded.total() == len(chosen)
    assert all(each == every[each.configuration] for each in found.outcomes)
    assert all(each.fits for each in found.outcomes)
    assert 0 < found.excluded[TOO_LARGE] <= sum(not each.fits for each in every.values())
    assert (found.excluded[TOO_SLOW] > 0) == (top < len(best_first))


def test_no_schedule_passes_the_bounds(outcomes):
    known = evaluation.Evaluation(PROBLEM)
    bounds = bounds_of(known, outcomes.space)
    assert (outcomes.samples_per_second <= bounds.throughput).all()
    timed = 0
    for place, each in enumerate(outcomes):
        physical = known.physical(CostSetting.of(each.configuration))
        every = [bounds.take(slice(place, place + 1))]
        for closer in closer_bounds(known, each.configuration):
            every.append(closer([physical], every[-1]))
        needed, speed = ([step[at].item() for step in every] for at in (1, 0))
        assert needed == sorted(needed)
        assert needed[-1] == each.memory_largest_gb
        assert speed == sorted(speed, reverse=True)
        assert speed[-1] >= each.samples_per_second
        timed += speed[-1] < speed[0]
    assert timed > len(outcomes) / 10


@pytest.mark.parametrize("memory", [8, 3])
def test_what_cannot_fit_is_not_simulated(memory):
    problem = with_memory(memory * GIGABYTE)
    chosen = configurations(problem)
    fitting = [each for each in evaluate(problem, chosen) if each.fits]
    found = evaluate_best(problem, chosen)
    assert list(found.outcomes) == fitting
    assert found.excluded == {TOO_LARGE: len(chosen) - len(fitting)}


def test_what_does_not_fit_comes_near(outcomes):
    problem = with_memory(2.0**20)
    chosen = configurations(problem)
    none_fit = evaluate(problem, chosen)
    assert not ranked(none_fit)
    least = min(each.memory_largest_gb for each in outcomes)
    assert nearest(none_fit).memory_largest_gb == least
    assert nearest_of(problem, chosen).memory_largest_gb == least


def test_a_journal_keeps_and_resumes(tmp_path, outcomes):
    path = tmp_path / "journal"
    Journal(path, PROBLEM).add(outcomes[:5])
    with path.open("a") as file:
        file.write('{"interrupted": ')
    resumed = Journal(path, PROBLEM)
    assert list(resumed.outcomes) == list(outcomes[:5])
    resumed.add(outcomes[5:9])
    assert list(Journal(path, PROBLEM).outcomes) == list(outcomes[:9])
    resumed.add(outcomes[7:12])  # as another search at the same time does
    assert list(Journal(path, PROBLEM).outcomes) == list(outcomes[:12])
    with pytest.raises(InvalidConfiguration, match="about another search"):
        Journal(path, replace(PROBLEM, gpus=(16,)))
    path.write_text("no journal\n")
    with pytest.raises(InvalidConfiguration, match="not a search's journal"):
        Journal(path, PROBLEM)


def test_workers_are_not_interrupted_even_while_they_begin():
    """They are forked off a server that has interruptions blocked from its first instruction."""
    stop_server()
    with executor("local", 1) as workers:
        assert (
            signal.SIGINT in workers.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
        )
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


FORKS = """\
import os
import re
from bfpp.sim.search.workers import executor

def work():
    with executor("local", 1) as workers:
        print(workers.submit(abs, -1).result(), flush=True)

if __name__ == "__main__":
    work()
    child = os.fork()
    work()
    if child:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_is_forked_has_workers_of_its_own(tmp_path):
    """As in a pool of someone else's whose work is searches."""
    (tmp_path / "forks.py").write_text(FORKS)
    done = subprocess.run(
        [sys.executable, tmp_path / "forks.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n" * 3, b"")


def test_all_is_imported_before_workers_are_forked():
    """So that each begins at once, and they share what is imported."""
    stop_server()
    with executor("local", 2) as workers:
        found = workers.submit(eval, "'bfpp.sim.search.evaluation' in __import__('sys').modules")
        assert found.result() is (SERVER in get_all_start_methods())


def test_no_place_for_what_workers_need_is_one_line(monkeypatch):
    def begin(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("bfpp.sim.search.workers.ProcessPoolExecutor", begin)
    with (
        pytest.raises(InvalidConfiguration, match="workers: cannot be started: No space left"),
        executor("local", 1),
    ):
        pass


INTERRUPTED_SEARCH = (
    "search", "--model", "bert-52b", "--cluster", "dgx1-v100", "--gpus", "64", "--batch", "512",
    "--workers", "2", "--json", "--journal", "found",
)  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="interrupts a group of processes")
def test_an_interrupted_search_ends_in_what_it_has_found(tmp_path):
    """Ctrl-C goes to all processes of a terminal: workers finish what they do, and say nothing.

    Standard output is at its end once all are gone.
    """
    main = subprocess.Popen(
        [sys.executable, "-P", "-m", "bfpp", *INTERRUPTED_SEARCH],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    journal = tmp_path / "found"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
        assert main.poll() is None
        time.sleep(0.01)
    os.killpg(main.pid, signal.SIGINT)
    out, err = main.communicate(timeout=60)
    assert (main.returncode, err) == (INTERRUPTED, b"")
    assert 0 < json.loads(out)["simulated"] < json.loads(out)["tried"]


def test_workers_begin_with_the_first_work_that_pays_and_again_after_their_end(monkeypatch):
    begun = []

    @contextmanager
    def recorded(*given):
        begun.append(given)
        yield Here()
        begun.append("ended")

    monkeypatch.setattr("bfpp.api.workers.executor", recorded)
    with Workers("local", 3) as workers:
        assert workers.submit(abs, -1).result() == 1
        workers.expect(WORTH - 1, PASSES - 1)
        assert workers.submit(abs, -1).result() == 1
        assert begun == []
        workers.expect(0, PASSES)
        assert [workers.submit(abs, -number).result() for number in range(2)] == [0, 1]
        assert begun == [("local", 3)]
        workers.end()
        assert begun == [("local", 3), "ended"]
        workers.submit(abs, -1)
    assert begun == [("local", 3), "ended"] * 2


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (OSError(24, "Too many open files"), "cannot be started: .* Too many open files"),
        (OSError("AF_UNIX path too long"), "cannot be started: AF_UNIX path"),
        (EOFError("unexpected EOF"), "a worker was killed from outside"),
        (ConnectionResetError(), "a worker was killed from outside"),
    ],
)
def test_workers_that_cannot_be_started_are_one_line(failure, reason, monkeypatch):
    """As where files or memory are short: the server is killed, or has none to fork one."""

    def start(_):
        raise failure

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", start)
    with (
        pytest.raises(InvalidConfiguration, match=f"workers: {reason}"),
        executor("local", 1) as workers,
    ):
        workers.submit(abs, -1)


def test_a_killed_worker_is_a_reason_to_have_fewer():
    with (
        pytest.raises(InvalidConfiguration, match="workers: a worker was killed from outside"),
        executor("local", 1) as workers,
    ):
        workers.submit(os._exit, 1).result()


def test_workers_end_with_the_process_that_they_work_for():
    """They have its standard output, too, which is at its end once all are gone."""
    main = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE)
    assert main.stdout is not None
    assert int(main.stdout.readline()) != main.pid
    main.kill()
    assert main.communicate(timeout=60) == (b"", None)


@pytest.mark.parametrize("most", [1, 2, 7])
def test_no_more_jobs_are_under_way_than_workers(most):
    under_way = []

    class Begun(NamedTuple):
        polls: list[int]
        number: int

        def done(self):
            self.polls[0] -= 1
            if self.polls[0] == 0:
                under_way.remove(self.number)
            return self.polls[0] <= 0

        def result(self):
            return self.number

    class Jobs:
        def submit(self, function, number):
            assert len(under_way) < most
            under_way.append(number)
            return Begun([function(number)], number)

    queue = JobQueue(Jobs(), most)
    work = [queue.submit(lambda number: 1 + 3 * number % 4, number) for number in range(12)]
    assert work[-1].result() == 11
    assert sorted(each.result() for each in as_completed(work)) == [*range(12)]
    assert not under_way


def test_work_that_is_done_with_is_not_kept():
    pieces = [np.zeros(1) for _ in range(4)]
    alive = [weakref.ref(piece) for piece in pieces]
    begun = [Here().submit(len, pieces.pop(0)) for _ in alive]
    for place, _ in enumerate(as_completed(begun.pop(0) for _ in alive)):
        assert [each() is None for each in alive] == [at < place for at in range(len(alive))]


class Lost(Exception):
    """What an executor raises for a job whose process was killed."""


class LossyJobs:
    """An executor whose jobs are lost so often before they end."""

    def __init__(self, losses):
        self.losses = losses

    def submit(self, function, *arguments):
        self.losses -= 1
        return Here().submit(lose if self.losses >= 0 else function, *arguments)


def lose(*_):
    raise Lost


def test_lost_jobs_begin_again_and_not_for_ever():
    queue = JobQueue(LossyJobs(LOSSES), 2, Lost)
    work = [queue.submit(abs, -number) for number in range(5)]
    assert [each.result() for each in work] == [*range(5)]
    with pytest.raises(BrokenExecutor):
        JobQueue(LossyJobs(LOSSES + 1), 2, Lost).submit(abs, -1).result()
    with pytest.raises(Lost):
        JobQueue(LossyJobs(1), 2).submit(abs, -1).result()


@pytest.mark.parametrize("name", ["local", "slurm", "dask"])
def test_executors_do_the_same_work(name, tmp_path, monkeypatch, outcomes):
    package = {"slurm": "submitit", "dask": "distributed"}.get(name)
    if package:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    chosen = configurations(PROBLEM)[:6]
    with executor(name, 1) as workers:
        work = [workers.submit(evaluate, PROBLEM, part) for part in (chosen[:3], chosen[3:])]
        found = [outcome for future in as_completed(work) for outcome in future.result()]
    assert {each.configuration: each for each in found} == {
        each.configuration: each for each in outcomes[:6]
    }


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("dask", "distributed")])
def test_an_executor_names_the_package_that_it_lacks(name, package, monkeypatch):
    monkeypatch.setattr("bfpp.sim.search.workers.find_spec", {package: None}.__getitem__)
    reason = f"executor: {name} needs the package {package}$"
    with pytest.raises(InvalidConfiguration, match=reason), executor(name, 1):
        pass


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A search small enough to run here, in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(
        "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
    )
    return [
        "search",
        "--top",
        "all",
        "--model",
        "small.toml",
        "--cluster",
        "dgx1-v100",
        "--gpus",
        "4",
    ]


def test_the_command_ranks_and_writes(command, capsys, tmp_path):
    words = [*command, "--batch", "4", "8", "--workers", "1", "--journal", "j", "--out", "all.csv"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    speeds = [each["samples_per_second"] for each in report["configurations"]]
    assert speeds == sorted(speeds, reverse=True)
    assert {each["batch"] for each in report["configurations"]} == {4, 8}
    assert report["tried"] >= len(speeds) > 10
    with (tmp_path / "all.csv").open() as file:
        assert len(list(csv.DictReader(file))) == report["tried"]
    tied = [each["ties"] for each in report["configurations"]]
    assert tied[0] is None
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "fit in memory" in " ".join(printed.split())
    marked = [line for line in printed.splitlines() if line.rstrip().endswith("=")]
    assert len(marked) == tied.count(True) > 0


def test_the_command_finds_the_best_alone(command, capsys):
    words = [*command, "--batch", "8", "--workers", "1"]
    assert main([*words, "--json"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert every["simulated"] == len(every["configurations"]) == every["tried"]
    assert every["excluded"] == {}
    assert main([*words, "--max-memory", "1.5GB", "--json"]) == 0
    fitting = json.loads(capsys.readouterr().out)
    assert 0 < fitting["simulated"] == len(fitting["configurations"]) < every["simulated"]
    assert fitting["excluded"] == {TOO_LARGE: fitting["tried"] - fitting["simulated"]}
    assert main([*words, "--top", "3", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["configurations"][:3] == every["configurations"][:3]
    assert best["simulated"] + sum(best["excluded"].values()) == best["tried"] == every["tried"]
    assert best["excluded"][TOO_SLOW] > 0
    assert main([*words, "--top", "3"]) == 0
    assert f"{TOO_SLOW} ({best['excluded'][TOO_SLOW]})" in " ".join(capsys.readouterr().out.split())


def test_a_page_of_several_sizes_can_be_filtered_by_size(command):
    assert main([*command, "2", "--batch", "4", "--workers", "1", "--html", "found.html"]) == 0
    page = Path("found.html").read_text()
    filters = json.loads(re.search(r'"filters":(\[[^]]*\])', page)[1])
    assert "gpus" in filters
    assert {size for size in (2, 4) if f'"gpus":{size},' in page} == {2, 4}


@pytest.mark.parametrize(
    ("files", "keeps_all"),
    [("", False), ("--out all.csv", True), ("--journal j", True), ("--html found.html", False)],
)
def test_a_file_of_all_results_has_what_does_not_fit_too(command, capsys, files, keeps_all):
    words = [*command, "--batch", "8", "--workers", "1", "--max-memory", "1.5GB", "--json"]
    assert main([*words, *files.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["simulated"] == found["tried"]) == keeps_all
    assert (found["excluded"] == {}) == keeps_all
    assert len(found["configurations"]) < found["tried"]
    if files == "--journal j":
        assert len(Path("j").read_text().splitlines()) == 1 + found["tried"]


def test_of_a_journal_that_has_all_nothing_is_left_to_find(command, capsys):
    words = [*command, "--batch", "8", "--workers", "1", "--journal", "j", "--json"]
    found = []
    for top in ("all", "3"):
        assert main([*words, "--top", top]) == 0
        report = json.loads(capsys.readouterr().out)
        found.append([each["step_time"] for each in report["configurations"]])
    every, best = found
    assert best == every


def test_what_a_journal_has_excludes_what_it_excluded(command, capsys):
    words = [*command, "--batch", "8", "--workers", "1", "--top", "2", "--journal", "j", "--json"]
    reports = []
    for _ in range(2):
        assert main(words) == 0
        reports.append(json.loads(capsys.readouterr().out))
    once, again = reports
    assert once["excluded"]
    assert (again["simulated"], again["excluded"]) == (once["simulated"], once["excluded"])
    assert again["configurations"] == once["configurations"]


def test_what_comes_nearest_is_told_with_files_too(command, capsys):
    """Once: a search that goes on from a journal knows it."""
    words = [*command, "--batch", "8", "--workers", "1", "--max-memory", "1GB", "--top", "3"]
    for _ in range(2):
        files = ["--journal", "j", "--out", "o.csv", "--force"]
        assert main([*words, *files, "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["simulated"] == 1
        assert report["excluded"] == {TOO_LARGE: report["tried"] - 1}
        assert report["nearest"]["missing_gb"] > 0
        assert len(Path("j").read_text().splitlines()) == 2


def test_what_all_of_them_chose_is_said_once(command, capsys):
    words = [*command, "--batch", "8", "--workers", "1", "--schedule", "gpipe"]
    words += ["--fix", "sharding=fsdp"]
    assert main([*words, "--recompute", "full"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "All with FSDP, recompute full " in printed
    assert " choices " not in printed
    assert main([*words, "--recompute", "full", "none"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "All with FSDP " in printed
    assert " choices " in printed


def test_what_only_an_option_tries_is_said(command, capsys, monkeypatch):
    """Layers divide over no pipeline, and experts over no device where that is asked for."""
    monkeypatch.setenv("COLUMNS", "300")
    words = [*command, "--batch", "4", "--workers", "1", "--schedule", "1f1b"]
    words[words.index("small.toml")] = "deepseek-v3"
    words += ["--implementation", "current", "--fix", "layers=7"]
    assert main([*words, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["untried"] == []
    words += ["--cut", "equal", "--ep", "1"]
    assert main(words) in (0, 1)
    printed = capsys.readouterr().out
    assert (
        "Not tried: pipelines of 2 or 4 ranks, over which 7 layers do not divide evenly (--cut "
        "as-needed); expert parallelism: each device has all 256 experts (--ep 2 4).\n"
    ) in printed
    assert main([*words, "--fix", "pp=4"]) == 2
    assert "not tried: pipelines of 4 ranks, over which 7 layers" in capsys.readouterr().err


def test_when_nothing_fits_the_nearest_is_told_and_what_is_largest_in_it(command, capsys, tmp_path):
    (tmp_path / "small.toml").write_text(
        "layers = 4\nhidden = 65536\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
    )
    words = [*command, "--batch", "4", "--workers", "1", "--schedule", "gpipe", "--out", "o.csv"]
    assert main([*words, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["configurations"] == []
    closest = report["nearest"]
    assert closest["missing_gb"] == closest["memory_reserved_gb"] - 32
    with (tmp_path / "o.csv").open() as file:
        least = min(csv.DictReader(file), key=lambda row: float(row["missing_gb"]))
    assert float(least["missing_gb"]) == closest["missing_gb"]
    parts = closest["memory_parts_gb"]
    assert all(float(least[f"memory_parts_gb.{part}"]) == parts[part] for part in parts)
    assert main(words) == 1
    printed = " ".join(capsys.readouterr().out.split())
    largest = max(parts, key=parts.get)
    assert f"needs {closest['missing_gb']:.1f} GiB more than a device has: " in printed
    assert f"GiB reserved of 32 GiB; largest is {largest}, {parts[largest]:.1f} GiB" in printed


def test_the_best_is_what_simulate_says(command, capsys):
    words = [*command, "--batch", "8", "--workers", "1", "--schedule", "breadth-first", "--json"]
    assert main(words) == 0
    best = json.loads(capsys.readouterr().out)["configurations"][0]
    options = ("pp", "tp", "dp", "microbatches", "sharding")
    again = [
        "simulate",
        "breadth-first",
        "--model",
        "small.toml",
        "--cluster",
        "dgx1-v100",
        "--json",
    ]
    again += [word for name in options for word in (f"--{name}", str(best[name]))]
    again += ["--loops", str(best["loops"]), "--microbatch-size", str(best["microbatch_size"])]
    assert main(again) == 0
    simulated = json.loads(capsys.readouterr().out)
    for name in ("step_time", "tflops_per_gpu", "memory_gb", "memory_min_gb"):
        assert simulated[name] == pytest.approx(best[name]), name


@pytest.mark.parametrize("schedule", ["breadth-first", "1f1b", "depth-first"])
def test_the_best_is_written_as_an_experiment(command, capsys, schedule):
    words = ["--batch", "8", "--workers", "1", "--schedule", schedule, "--best", "best.toml"]
    assert main([*command, *words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["configurations"][0]
    assert main(["simulate", "best.toml", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    for name in ("step_time", "tflops_per_gpu", "memory_gb", "memory_min_gb"):
        assert simulated[name] == pytest.approx(best[name]), name


def test_another_name_of_a_schedule_searches_the_same():
    one, both = (
        list(configurations(replace(PROBLEM, schedules=names)))
        for names in (("depth-first",), ("depth-first", "interleaved"))
    )
    assert one == both


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--batch", "7", "--schedule", "nope"], "SCHEDULE: 'nope' is not a schedule"),
        (["--batch", "0"], "argument --batch: must be a whole number of at least 1"),
        (["--batch", "8", "--out", "x.xls"], "argument --out: must end in .csv or .parquet, not"),
    ],
)
def test_bad_input_gets_one_line(command, words, reason, capsys):
    try:
        code = main([*command, *words])
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1


def test_the_tradeoff_follows_the_theory(command, capsys):
    words = ["tradeoff", *command[3:], "--batch", "4", "--workers", "1", "--critical-batch", "64"]
    words += ["--sizes", "4", "64", "--price", "2", "--schedule", "1f1b", "--svg", "t.svg"]
    assert main([*words, "--json"]) == 0
    small, large = json.loads(capsys.readouterr().out)["1f1b"]
    assert (small["batch"], large["batch"]) == (4, 64)
    assert large["gpu_days"] / small["gpu_days"] == pytest.approx((1 + 64 / 64) / (1 + 4 / 64))
    assert small["days"] == pytest.approx(small["gpu_days"] / 4)
    assert small["price"] == pytest.approx(small["gpu_days"] * 48)
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "critical batch size of 64: on 3,200,000 samples" in printed


def test_the_tradeoff_has_whole_replicas(command, capsys):
    words = ["tradeoff", *command[3:], "--batch", "4", "--workers", "1", "--critical-batch", "64"]
    words += ["--sizes", "6", "--schedule", "1f1b", "--json", "--fix"]
    assert main([*words, "pp=2"]) == 0
    [found] = json.loads(capsys.readouterr().out)["1f1b"]
    assert (found["outcome"]["pp"], found["outcome"]["tp"]) == (2, 1)
    assert main([*words, "pp=4"]) == 2
    reason = "--sizes: replicas of what fits on 4 GPUs do not fill 6"
    assert reason in capsys.readouterr().err


def test_groups_of_contexts_and_experts_are_tried_where_they_are_allowed():
    model = replace(load_model("deepseek-v2"), layers=2, sequence=64)
    cluster = load_cluster("dgx-b200")
    problem = Problem(model, cluster, (8,), (8,), ("1f1b",), CURRENT, cp=(1, 2, 3), ep=(1, 8, 7))
    found = {each.degrees for each in configurations(problem)}
    assert {(each.cp, each.ep) for each in found} == {(1, 1), (2, 1), (1, 8), (2, 8)}
    assert all(each.ep == 1 or each.pp == 1 for each in found)
    some = [each for each in configurations(problem) if each.degrees.ep == 8][:3]
    for outcome in evaluate(problem, some):
        assert outcome_of(outcome.whole_record) == outcome
        assert outcome.record["ep"] == 8
    dense = replace(model, experts=None)
    none = Problem(dense, cluster, (8,), (8,), ("1f1b",), CURRENT, ep=(8,))
    assert not configurations(none)


def test_full_sharding_is_tried_in_all_ways_that_are_asked_for():
    """Each once: what a choice does not change is not tried again."""
    asked = {
        "gather_per": ("run", "step"),
        "reduce_per": ("run", "step"),
        "run_length": (None, 2),
        "weight_buffers": (2, 4),
        "prefetch": (None, 1),
    }
    problem = replace(PROBLEM, schedules=("breadth-first",), **asked)
    found = configurations(problem)
    alike = {}
    for each in found:
        kind = replace(each, communication=each.communication.sharding)
        alike.setdefault(kind, []).append(each.communication)
    assert {len(ways) for kind, ways in alike.items() if kind.communication != "full"} == {1}
    full = {kind: ways for kind, ways in alike.items() if kind.communication == "full"}
    # Where runs are gathered, where they are reduced alone, and where neither.
    assert {len(ways) for kind, ways in full.items() if kind.microbatches > 2} == {16 + 2 + 1}
    assert {len(ways) for kind, ways in full.items() if kind.microbatches <= 2} == {8 + 1 + 1}
    alone = configurations(replace(PROBLEM, schedules=("breadth-first",)))
    assert set(alone) < set(found)
    assert len(alone) == len(alike)
    for outcome in evaluate(problem, found[-20:]):
        assert outcome_of(outcome.whole_record) == outcome


def test_the_command_takes_choices_of_full_sharding(command, capsys):
    ways = ["--gather-per", "run", "step", "--run-length", "all", "4", "--json"]
    words = [*command, "--batch", "32", "--workers", "1", "--schedule", "breadth-first", *ways]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["configurations"]
    assert {row["gather_per"] for row in rows if row["sharding"] == "full"} == {"run", "step"}
    assert {row["run_length"] for row in rows} == {None, 4}
    assert {row["gather_per"] for row in rows if row["sharding"] != "full"} == {"run"}


def test_the_table_has_as_many_of_the_best_as_asked_for_and_the_front(command, capsys):
    words = [*command, "--batch", "32", "--workers", "1", "--top", "2"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["configurations"]
    assert main(words) == 0
    words_of = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [words for words in words_of if words[2:3] == ["x"]]
    front = {at for at, row in enumerate(rows) if row["pareto"]}
    assert 2 <= len(shown) < len({0, 1} | front) < len(rows)


def test_search_prints_groups_of_experts(bfpp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    given = "--model deepseek-v2 --seq-length 64 --cluster dgx-b200 --implementation current"
    options = "--gpus 8 --batch 8 --schedule 1f1b --ep 8 --workers 1"
    code, out, _ = bfpp("search", *given.split(), *options.split())
    assert code == 1  # 236 B parameters do not fit
    assert ", EP 8" in out


def test_precisions_and_recomputations_are_searched_with_each_other():
    model, cluster = replace(SMALL, gated=True, dropout=False), load_cluster("dgx-h100")
    computed = {"precision": ("bf16", "fp8-current"), "recompute": ("none", "full")}
    problem = Problem(model, cluster, (8,), (8,), ("1f1b",), CURRENT, **computed)
    every = configurations(problem)
    plain = configurations(replace(problem, precision=(), recompute=()))
    assert len(every) == len(set(every)) == 4 * len(plain)
    outcomes = evaluate(problem, every[:8])
    for outcome, configuration in zip(outcomes, every, strict=False):
        assert outcome_of(outcome.whole_record).configuration == configuration
        alone = replace(
            problem,
            precision=(str(configuration.precision),),
            recompute=(str(configuration.recompute),),
        )
        assert list(evaluate(alone, [configuration])) == [outcome]
    assert len({outcome.step_time for outcome in outcomes[:4]}) == 4


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ({"precision": ("mxfp8",)}, "precision"),
        ({"recompute": ("moe",)}, "recompute"),
    ],
)
def test_what_cannot_be_computed_is_not_searched(others, field):
    with pytest.raises(InvalidConfiguration) as refusal:
        Problem(SMALL, load_cluster("dgx-h100"), (8,), (8,), ("1f1b",), CURRENT, **others)
    assert refusal.value.field == field


def test_uneven_cuts_and_recomputation_are_searched_where_they_are_named(bfpp, tmp_path):
    model = replace(load_model("llama3-8b"), layers=6, sequence=512)
    cluster = load_cluster("dgx-h100")
    problem = Problem(
        model, cluster, (8,), (8,), ("1f1b", "breadth-first"), CURRENT,
        recompute=("none", "full"), cut=("even", "fewer-at-ends"),
    )  # fmt: skip
    found = configurations(problem)
    assert {str(each.recompute) for each in found} == {"none", "full"}
    assert all((each.cut is None) == (each.degrees.pp == 1) for each in found)
    of_four = {each.cut for each in found if each.degrees.pp == 4 and each.layout.stages == 4}
    assert of_four == {(2, 2, 1, 1), (1, 2, 2, 1)}
    # Two stages on each of four ranks: the embedding and the head alone.
    assert (0, 1, 1, 1, 1, 1, 1, 0) in {each.cut for each in found}
    plain = Problem(model, cluster, (8,), (8,), ("1f1b", "breadth-first"), CURRENT)
    assert {each.degrees.pp for each in configurations(plain)} == {1, 2}
    outcomes = evaluate(problem, found[::7])
    for outcome in outcomes:
        assert outcome_of(outcome.whole_record) == outcome
        assert problem.physical_of(outcome.configuration).cut == outcome.configuration.cut
    best = ranked(outcomes)
    assert [each.samples_per_second for each in best] == sorted(
        (each.samples_per_second for each in best), reverse=True
    )
    with pytest.raises(InvalidConfiguration, match="cut: 'odd' is neither one of even"):
        Problem(model, cluster, (8,), (8,), ("1f1b",), CURRENT, cut=("odd",))
    with pytest.raises(InvalidConfiguration, match="recompute: 'all' is not one of none"):
        Problem(model, cluster, (8,), (8,), ("1f1b",), CURRENT, recompute=("all",))
    path = tmp_path / "best.toml"
    words = (
        "search --model gpt-345m --cluster dgx-h100 --gpus 4 --batch 4 --schedule 1f1b --workers 1 "
        "--implementation current --recompute full none --cut fewer-at-ends --fix layers=5 "
        f"--best {path} --out {path.with_suffix('.parquet')}"
    )
    code, out, _ = bfpp(*words.split())
    assert code == 0
    assert "none" in out
    assert read_experiment(str(path)).recompute == "none"


def test_today_s_software_is_searched_with_all_that_has_a_use_unless_it_is_said(command):
    """Software of a former year is searched as it was used."""

    def problem(*further):
        parser = Parser()
        search.add_arguments(parser)
        return problem_of(parser.parse([*command[1:], "--batch", "4", *further]))

    former = problem()
    assert (former.ep, former.cp, former.dp_replicate) == ((1,), (1,), (1,))
    assert (former.recompute, former.cut, former.tp_overlap) == ((), ("equal",), ())
    today = problem("--cluster", "dgx-h100")
    assert (today.ep, today.cp, today.dp_replicate) == ((), (), ())
    assert today.recompute == ("none", "layernorm", "layernorm,mlp", "full")
    assert (today.cut, today.tp_overlap) == (("as-needed",), ("chunked",))
    assert [each.name for each in today.rules[4:]] == ["zb1p", "zb-v", "dualpipe-v"]
    said = problem("--cluster", "dgx-h100", "--recompute", "full", "--fix", "precision=bf16")
    assert (said.recompute, said.precision) == (("full",), ("bf16",))
    experts = problem("--cluster", "dgx-h100", "--model", "mixtral-8x22b", "--fix", "layers=4")
    broken = Counter()
    found = configurations(experts, broken)
    asked = configurations(replace(experts, ep=(1, 2, 4, 8)))
    assert list(found) == list(asked)
    assert {each.degrees.ep for each in found} == {1, 2, 4}
    assert not any("ep:" in rule for rule in broken)
    assert problem("--model", "mixtral-8x22b", "--implementation", "megatron").ep == (1,)
