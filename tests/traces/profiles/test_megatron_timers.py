"""Timers in logs, written as Megatron-LM writes them (megatron/core/timers.py), and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.recorded.timers import TimerExplanation
from bfpp.traces.profiles.megatron_timers import NoTimers, read_timers

SOME = settings(derandomize=True, deadline=None, max_examples=80)
NAMES = ("forward-backward", "forward-compute", "all-grads-sync", "train/valid/test-data")
TIMES = st.integers(0, 10**7).map(lambda each: each / 100)


def of_all(times):
    """`--timing-log-option all`: a rank of 0 is written, and a name ahead of the first other."""
    lines = ["times across ranks (ms):"]
    for name, ranks in times.items():
        is_named = False
        for rank, number in enumerate(ranks):
            if number > 0 and not is_named:
                is_named = True
                lines.append(f"  {name}:")
            lines.append(f"     rank {rank:2d}: {number:.2f}")
    return lines


def of_extremes(times, largest_alone):
    lines = [f"{'max' if largest_alone else '(min, max)'} time across ranks (ms):"]
    for name, ranks in times.items():
        if ran := [each for each in ranks if each > 0]:
            least, largest = min(ran), max(ran)
            number = f"{largest:.2f}" if largest_alone else f"({least:.2f}, {largest:.2f})"
            lines.append(f"    {(name + ' ').ljust(48, '.')}: {number}")
    return lines


@SOME
@given(
    st.integers(1, 5).flatmap(
        lambda ranks: st.dictionaries(
            st.sampled_from(NAMES), st.lists(TIMES, min_size=ranks, max_size=ranks), min_size=1
        )
    ),
    st.sampled_from(["all", "minmax", "max"]),
    st.sampled_from(["", "[default7]: ", "2026-11-27 12:00:00 | "]),
)
def test_what_is_logged_is_read(times, option, prefix):
    write = {
        "all": of_all,
        "minmax": lambda each: of_extremes(each, False),
        "max": lambda each: of_extremes(each, True),
    }[option]
    lines = [
        " iteration        7/      50 | elapsed time per iteration (ms): 512.5 |",
        *write(times),
    ]
    text = "\n".join(prefix + line for line in [*lines, "saving checkpoint at iteration", ""])
    ran = {name: [each for each in ranks if each] for name, ranks in times.items() if any(ranks)}
    if not ran:
        with pytest.raises(NoTimers):
            read_timers(text)
        return
    explained = TimerExplanation(read_timers(text))
    assert explained.iteration_seconds == pytest.approx(0.5125)
    assert [each.name for each in explained.timers] == list(ran)
    for timer in explained.timers:
        milliseconds = ran[timer.name]
        assert timer.largest == pytest.approx(max(milliseconds) / 1e3)
        if option == "max":
            assert timer.least is None
        else:
            assert timer.least == pytest.approx(min(milliseconds) / 1e3)
        if option == "all":
            known = {rank: each / 1e3 for rank, each in enumerate(times[timer.name]) if each}
            assert timer.ranks == pytest.approx(known)
        else:
            assert timer.ranks is None
            assert timer.slowest is None


OLD = "time (ms) | forward-compute: 58.16 | backward-compute: 42.66 | optimizer: 0.00"


def test_the_form_of_one_rank():
    [report] = read_timers(f"rank 3 says {OLD}\n").reports
    assert {name: each.ranks for name, each in report.timers.items()} == {
        "forward-compute": {0: pytest.approx(0.05816)},
        "backward-compute": {0: pytest.approx(0.04266)},
    }


SETUP = "(min, max) time across ranks (ms):\n    model-setup ....: (9.00, 10.00)\n"
ITERATIONS = "".join(
    f" iteration {number}/ 50 | elapsed time per iteration (ms): {number}0.0 |\n"
    f"times across ranks (ms):\n  forward-compute:\n     rank  0: {number}.00\n"
    f"     rank  1: {number + 2}.00\n     rank  2: {number}.00\n"
    for number in (10, 20)
)


def test_reports_are_of_iterations_and_the_slowest_rank_is_named(bfpp, answer, tmp_path):
    path = tmp_path / "run.log"
    path.write_text(SETUP + ITERATIONS)
    found = answer(f"explain {path}")
    assert (found["reports"], found["iteration_seconds"]) == (2, pytest.approx(0.15))
    [timer] = found["timers"]
    assert timer["ranks"] == pytest.approx({"0": 0.015, "1": 0.017, "2": 0.015})
    assert (timer["slowest_rank"], timer["slowest_excess"]) == (1, pytest.approx(2 / 15))
    assert found["not_measured"] == [
        "Not measured: backward-compute (--timing-log-level 2 logs them)."
    ]
    out = bfpp(f"explain {path}")[1]
    assert "Rank 1 is the slowest in forward-compute: +13.3% against the median rank." in out


def test_a_log_of_extremes_says_what_it_does_not_say(answer, tmp_path):
    path = tmp_path / "run.txt"
    path.write_text(SETUP)
    found = answer(f"explain {path}")
    assert found["iteration_seconds"] is None
    assert [each["ranks"] for each in found["timers"]] == [None]
    assert len(found["not_measured"]) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("explain {}", "--what-if: is of a timeline or a job"),
        ("explain {} --pp 4", "--pp: a log is as it ran"),
        ("explain {} other.log", "one log at a time"),
    ],
)
def test_what_makes_no_sense_of_a_log_is_refused(bfpp, tmp_path, line, words):
    path = tmp_path / "run.log"
    path.write_text(ITERATIONS)
    more = ["--what-if", "gpipe"] if "what-if" in words else []
    code, out, err = bfpp(*line.format(path).split(), *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_log_without_timers_is_no_log(bfpp, tmp_path):
    (tmp_path / "run.log").write_text("hello\n")
    code, _, err = bfpp(f"explain {tmp_path / 'run.log'}")
    assert code == 2
    assert Path(tmp_path / "run.log").name in err
