"""The claims of figures 1, 4, 5, 6 and 8, on made-up numbers on both sides of each threshold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bfpp.paper.figures import figure_1, figure_4, figure_5, figure_6, figure_8
from bfpp.paper.item import Folder
from bfpp.schedules import find_schedule
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.claims import ALONE, DEPTH, OTHER, OURS, numbers

# Figures 8 and 1: by size of the cluster, days and GPU-days


def training(gpus: int, days: float, gpu_days: float) -> SimpleNamespace:
    return SimpleNamespace(
        gpus=gpus, days=days, gpu_days=gpu_days, batch=1234.5,
        outcome=SimpleNamespace(memory_min_gb=20.25),
    )  # fmt: skip


def of_sizes(days: Sequence[float], gpu_days: Sequence[float]) -> list[SimpleNamespace]:
    assert figure_8.SIZES == (256, 512, 1024, 2048, 4096, 8192, 16384)
    return [training(*each) for each in zip(figure_8.SIZES, days, gpu_days, strict=True)]


DAYS = (300.0, 183.5, 150.0, 100.0, 50.0, 25.0, 10.0)


@pytest.mark.parametrize(
    ("cheaper", "holds"),
    [
        ((), [True, True, True, True]),
        ((0,), [True, True, False, False]),  # 300 days: more than six months
        ((1,), [True, True, False, False]),  # 183.5 days
        ((2,), [True, False, False, False]),  # 150 days
        ((0, 1), [False, True, False, False]),
    ],
)
def test_claims_of_figure_8(cheaper, holds, monkeypatch, tmp_path: Path) -> None:
    """Breadth-first costs 100; without a pipeline 99 on some sizes, and 101 on others."""
    costs = [99.0 if at in cheaper else 101.0 for at in range(len(DAYS))]
    found = {OURS: of_sizes(DAYS, [100.0] * 7), ALONE: of_sizes(DAYS, costs), DEPTH: []}
    monkeypatch.setattr(figure_8, "trainings", lambda _: found)
    made = figure_8.make(Folder(tmp_path))
    assert [each.holds for each in made.claims] == holds
    ours = 7 - len(cheaper)
    assert [numbers(made.claims[at].here) for at in (0, 2, 3)] == [[ours, 7]] * 3
    least = [DAYS[max(cheaper)]] if cheaper else []
    assert numbers(made.claims[1].here) == [round(each) for each in least]
    points = made.record["points"]["(a) 52 B model (B_crit 6780)"]
    assert points[OURS] == [[each, 0.1] for each in DAYS]
    assert points[DEPTH] == []


@pytest.mark.parametrize(
    ("ours", "others", "holds"),
    [
        (100.0, 142.0, True), (100.0, 143.5, False), (100.0, 131.0, True), (100.0, 129.0, False),
        (142.0, 100.0, False),
    ],
)  # fmt: skip
def test_the_claim_of_figure_1(ours, others, holds, monkeypatch, tmp_path: Path) -> None:
    """The next method takes more than 30 % longer, and less than 43 %."""
    found = {
        OURS: [training(2048, 1.0, 1.0), training(4096, ours, 4e5)],
        ALONE: [training(4096, others, 5e5)],
        OTHER: [training(4096, 200.0, 8e5)],
        DEPTH: [],
    }
    monkeypatch.setattr(figure_1, "trainings", lambda _: found)
    made = figure_1.make(Folder(tmp_path))
    (claim,) = made.claims
    assert claim.holds == holds
    longer = max(ours, others) / min(ours, others) - 1
    assert numbers(claim.here) == [round(100 * longer)]
    assert (OURS in claim.here) == (ours < others)
    assert made.table.rows[0] == [OURS, f"{ours:.1f}", "400,000", "1,234", "20.2"]
    assert made.record["trainings"][OURS] == {
        "days": ours, "gpu_days": 4e5, "batch": 1234.5, "memory_gb": 20.25,
    }  # fmt: skip
    assert [*made.record["trainings"]] == [OURS, ALONE, OTHER]


# Figures 4, 5 and 6


@pytest.mark.parametrize(
    ("times", "holds"),
    [
        ((140, 140, 120, 110), [True, True, True]),
        ((133, 133, 120, 110), [True, True, True]),  # 10.8 % less
        ((131, 131, 120, 110), [False, True, True]),  # 9.2 % less
        ((131, 140, 120, 110), [False, True, False]),
        ((140, 131, 120, 110), [False, True, False]),
        ((140, 140, 110, 110), [True, False, True]),
        ((140, 140, 110, 131), [False, False, True]),
        ((100, 140, 120, 110), [False, False, False]),
        ((140, 100, 120, 110), [False, False, False]),
    ],
)
def test_claims_of_figure_4(times, holds, monkeypatch, tmp_path: Path) -> None:
    """Steps of GPipe, 1F1B, depth-first and breadth-first."""
    real, steps = figure_4.captioned, iter(times)

    def made_up(*given):
        panel, step_time = real(*given), next(steps)

        class Timed(Timeline):
            @property
            def step_time(self) -> float:
                return step_time

        timed = object.__new__(Timed)
        vars(timed).update(vars(panel.timeline))
        return type(panel)(panel.caption, timed)

    monkeypatch.setattr(figure_4, "captioned", made_up)
    found = figure_4.make(Folder(tmp_path))
    assert [each.holds for each in found.claims] == holds
    gpipe, other, depth, breadth = times
    gain = min(gpipe, other) / max(depth, breadth) - 1
    assert numbers(found.claims[0].here) == [round(100 * gain)]
    assert numbers(found.claims[1].here) == [round(100 * (depth / breadth - 1))]
    assert numbers(found.claims[2].here) == [gpipe, other]


FULL, USABLE = 31.0, 30.0  # GB; 30.6 can be used


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({("depth-first", "few"): 44.0}, [0]),  # breadth-first is 9 % ahead of it
        ({("depth-first", "few"): 43.0}, []),  # 11.6 %
        ({("1f1b", "few"): 49.0, ("gpipe", "few"): 50.0}, [0, 4]),
        ({("depth-first", "middle"): 41.0}, []),  # slower than both at 10 of 16
        ({("depth-first", "middle"): 41.0, ("depth-first", "few"): 41.0}, [1]),  # at 8
        ({("gpipe", "many"): 70.0}, []),  # out of memory
        ({("1f1b", "many"): 54.0}, [2, 4]),
        ({("depth-first", "many"): 59.9}, [4]),
        ({("depth-first", "many"): 60.1}, [2, 4]),
    ],
)
def test_claims_of_figure_5(changes, wrong, monkeypatch, tmp_path: Path) -> None:
    """At the fewest, the most, and all other numbers of micro-batches, of the small model apart."""
    base = {
        "breadth-first": {"few": 48.0, "middle": 50.0, "others": 50.0, "many": 55.0},
        "gpipe": {"few": 42.0, "middle": 40.0, "others": 40.0, "many": 61.0},
        "depth-first": {"few": 38.0, "middle": 38.0, "others": 38.0, "many": 54.5},
        "1f1b": {"few": 40.0, "middle": 40.0, "others": 40.0, "many": 60.0},
    }
    for (name, when), value in changes.items():
        base[name][when] = value

    def made_up(name, model, groups, microbatches, loops):
        assert groups == {"bert-52b": (8, 8, 1), "bert-6.6b": (4, 2, 8)}[model]
        assert loops == (4 if find_schedule(name).looped else 1)
        least, most = {"bert-52b": (8, 128), "bert-6.6b": (4, 64)}[model]
        others = "middle" if model == "bert-52b" else "others"
        when = {least: "few", most: "many"}.get(microbatches, others)
        memory = FULL if name == "gpipe" and when == "many" else USABLE
        return SimpleNamespace(utilization=base[name][when], memory_largest_gb=memory)

    monkeypatch.setattr(figure_5, "reached", made_up)
    found = figure_5.make(Folder(tmp_path))
    assert [number for number, each in enumerate(found.claims) if not each.holds] == wrong
    assert [*found.record["out_of_memory"].values()] == [
        {"GPipe (ours)": [128]}, {"GPipe (ours)": [64]},
    ]  # fmt: skip


GAIN = {1: 30.0, 2: 36.0, 4: 40.0, 8: 30.0}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({("depth-first", 16, 4): 30.0, ("depth-first", 16, 2): 30.0}, [0, 1]),
        ({("depth-first", 16, 8): 50.0}, [1]),
        ({("depth-first", 64, 2): 43.0}, [0, 1]),
        ({("depth-first", 64, 8): 29.99}, []),  # 42 is 40.05 % more
        ({("depth-first", 64, 8): 30.01}, [2]),  # 39.95 %
        ({("breadth-first", 16, 8): 41.0}, [3]),
        ({("breadth-first", 64, 2): 41.0}, [4]),
        ({("breadth-first", 64, 1): 29.0}, [0]),  # gains more at 64 than at 16
    ],
)
def test_claims_of_figure_6(changes, wrong, monkeypatch, tmp_path: Path) -> None:
    """By schedule, batch size and loops."""
    base = {
        **{("breadth-first", 16, loops): value for loops, value in GAIN.items()},
        **{("breadth-first", 64, loops): value for loops, value in {**GAIN, 1: 31.0}.items()},
        **{("depth-first", 16, loops): value for loops, value in {**GAIN, 4: 41.0}.items()},
        **{("depth-first", 64, loops): 42.0 - loops for loops in (2, 4)},
        ("depth-first", 64, 1): 42.0,
        ("depth-first", 64, 8): 29.0,
    } | changes
    if ("depth-first", 64, 2) in changes:  # more than at 16
        base |= {("depth-first", 64, 1): 20.0}

    def made_up(name, model, groups, batch, loops):
        looped = {"gpipe": "breadth-first", "1f1b": "depth-first"}
        assert (name in looped) == (loops == 1)
        assert (model, groups) == ("bert-52b", (8, 8, 1))
        return base[looped.get(name, name), batch, loops]

    monkeypatch.setattr(figure_6, "utilization", made_up)
    found = figure_6.make(Folder(tmp_path))
    said = [number for number, each in enumerate(found.claims) if not each.holds]
    assert said == ([*wrong, 2] if ("depth-first", 64, 2) in changes else wrong)
    if not changes:
        assert [numbers(each.here) for each in found.claims][:3] == [
            [33, 16, 29, 64, 37, 16, 0, 64], [4, 16, 1, 64], [45, 29, 42],
        ]  # fmt: skip
