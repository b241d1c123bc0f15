"""Checkpoints: what is saved is loaded bit by bit, however it is cut, or refused in one line."""

from __future__ import annotations

import resource
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import load as torch_load

from bfpp.executor.checkpoint import (
    CheckpointError,
    Processes,
    TensorPieces,
    load,
    read_manifest,
    read_settings,
    save,
)
from bfpp.executor.checkpoint.boxes import Box, boxes_of, segments, shared
from bfpp.executor.checkpoint.pieces import DTYPES
from bfpp.executor.checkpoint.planning import SavePieces
from tests.helpers.checkpoint_states import cut, empty_state, loaded_step, state_of, whole


def bits(values: torch.Tensor) -> bytes:
    return bytes(values.contiguous().view(torch.uint8).tolist())


@st.composite
def intervals(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Anything that a process may hold: gaps, overlaps, the same twice, nothing."""
    ends = st.integers(0, size)
    pairs = draw(st.lists(st.tuples(ends, ends).map(sorted), max_size=4))
    return [(start, stop) for start, stop in pairs]


@st.composite
def covers(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """Intervals that leave no value out."""
    bounds = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=4))})
    whole_cut = list(pairwise(bounds))
    return draw(st.permutations(whole_cut + draw(intervals(size))))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits at all: payloads of NaN, infinities, subnormal numbers."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    size = draw(st.integers(1, 40))
    length = size * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=length, max_size=length)))
    return torch.frombuffer(data, dtype=dtype)


# Values


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_what_was_cut_one_way_is_loaded_in_another(data: st.DataObject) -> None:
    state = data.draw(st.dictionaries(st.text(max_size=5), tensors(), min_size=1, max_size=4))
    held = {
        name: TensorPieces(
            len(values),
            [(start, values[start:stop]) for start, stop in data.draw(covers(len(values)))],
        )
        for name, values in state.items()
    }
    wanted = {
        name: TensorPieces(
            len(values),
            [
                (start, torch.zeros(stop - start, dtype=values.dtype))
                for start, stop in data.draw(intervals(len(values)))
            ],
        )
        for name, values in state.items()
    }
    with tempfile.TemporaryDirectory() as directory:
        load(save(Path(directory), 1, held, {}, None), wanted, None)
    for name, pieces in wanted.items():
        for offset, values in pieces.pieces:
            assert bits(values) == bits(state[name][offset : offset + len(values)])


@given(covers(30), st.data())
def test_segments_are_what_the_same_processes_hold(
    held: list[tuple[int, int]], data: st.DataObject
) -> None:
    owned = [(start, stop, data.draw(st.integers(0, 2))) for start, stop in held if start < stop]
    found = [
        (value, process)
        for start, stop, holders in segments(30, owned)
        for value in range(start, stop)
        for process in holders
    ]
    expected = {(value, process) for start, stop, process in owned for value in range(start, stop)}
    assert sorted(found) == sorted(expected)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[torch.Tensor, TensorPieces, TensorPieces]:
    """Values in rows, all of them held, and some wanted: flat, or as shares of columns."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    values = torch.arange(rows * columns, dtype=torch.float64)
    held = draw(st.one_of(covers(len(values)).map(_flat), shares_of_columns(rows, columns)))
    wanted = draw(st.one_of(covers(len(values)).map(_flat), shares_of_columns(rows, columns)))
    return values, _filled(values, columns, held), _filled(-values - 1, columns, wanted)


Part = tuple[int, tuple[int, ...]]
"""Offset and shape of a piece."""


def _flat(intervals: list[tuple[int, int]]) -> list[Part]:
    return [(start, (stop - start,)) for start, stop in intervals]


@st.composite
def shares_of_columns(draw: st.DrawFn, rows: int, columns: int) -> list[Part]:
    """Columns in bands, the values of each of which are cut anywhere; some twice."""
    found: list[Part] = []
    for left, right in pairwise(sorted({0, columns, *draw(st.lists(st.integers(0, columns)))})):
        width = right - left
        for start, stop in draw(covers(rows * width)):
            for _, box in boxes_of(start, stop - start, width):
                found.append((box.row * columns + left + box.column, (box.rows, box.columns)))
    return found


def _filled(values: torch.Tensor, columns: int, parts: list[Part]) -> TensorPieces:
    """Copies of parts of values."""
    return TensorPieces(
        len(values),
        [
            (offset, values.as_strided(shape, (columns, 1)[-len(shape) :], offset).clone())
            for offset, shape in parts
        ],
        columns if any(len(shape) == 2 for _, shape in parts) else None,
    )


@settings(deadline=None, max_examples=40)
@given(matrices())
def test_rows_that_were_cut_one_way_are_loaded_in_another(
    given: tuple[torch.Tensor, TensorPieces, TensorPieces],
) -> None:
    values, held, wanted = given
    with tempfile.TemporaryDirectory() as directory:
        load(save(Path(directory), 1, {"a": held}, {}, None), {"a": wanted}, None)
    for place, piece in wanted.within(values):
        assert torch.equal(piece, place)


@given(st.data())
def test_boxes_are_what_the_same_processes_hold(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    owned = []
    for top, bottom in data.draw(intervals(rows)):
        for left, right in data.draw(intervals(columns)):
            if top < bottom and left < right:
                box = Box(top, left, bottom - top, right - left)
                owned.append((box, data.draw(st.integers(0, 2))))
    found: dict[tuple[int, int], list[int]] = {}
    for box, holders in shared(rows, columns, owned):
        places = places_of(box)
        assert found.keys().isdisjoint(places)
        assert all(each.covers(box) or set(places).isdisjoint(places_of(each)) for each, _ in owned)
        found |= dict.fromkeys(places, holders)
    assert found.keys() == set(places_of(Box(0, 0, rows, columns)))
    for place, holders in found.items():
        assert holders == sorted({process for box, process in owned if place in places_of(box)})


def places_of(box: Box) -> list[tuple[int, int]]:
    rows, columns = range(box.row, box.row + box.rows), range(box.column, box.column + box.columns)
    return [(row, column) for row in rows for column in columns]


def test_a_slice_is_stored_as_one_box(tmp_path: Path) -> None:
    """Two halves of the columns, one of which is in two shares, cut within a row."""
    values = torch.arange(70.0).view(7, 10)
    right = values[:, 5:]
    pieces = [(0, values[:, :5]), (5, right[:3]), (35, right[3:4, :2]), (37, right[3:4, 2:])]
    pieces.append((45, right[4:]))
    path = save(tmp_path, 0, {"a": TensorPieces(70, pieces, 10)}, {}, None)
    assert len(read_manifest(path).tensors["a"].extents) == 5
    read = {"a": torch.zeros(7, 10)}
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        torch_load(read, storage_reader=FileSystemReader(path), no_dist=True)
    assert torch.equal(read["a"], values)


def test_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 0, {"a": TensorPieces(12, [(0, torch.ones(4, 3))], 3)}, {}, None)
    values = torch.zeros(3, 4)
    with pytest.raises(CheckpointError, match=r"a has shape \[4, 3\], but \[3, 4\] in the model"):
        load(path, {"a": TensorPieces(12, [(0, values)], 4)}, None)
    assert not values.any()


def test_a_shared_buffer_is_read_in_place(tmp_path: Path) -> None:
    buffer = torch.arange(100.0)
    named = {"a": TensorPieces(60, [(0, buffer[:60])]), "b": TensorPieces(40, [(0, buffer[60:])])}
    path = save(tmp_path, 0, named, {}, None)
    buffer.fill_(-1)
    load(path, named, None)
    assert torch.equal(buffer, torch.arange(100.0))


def test_a_parameter_that_requires_a_gradient_is_loaded(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.arange(5.0))
    path = save(tmp_path, 0, {"a": cut(parameter)}, {}, None)
    other = torch.nn.Parameter(torch.zeros(5))
    load(path, {"a": cut(other, 2)}, None)
    assert torch.equal(other, parameter)


def test_replicas_in_one_process_are_written_once_and_all_loaded(tmp_path: Path) -> None:
    size = 50_000
    replicas = [torch.arange(float(size)) for _ in range(3)]
    named = {"a": TensorPieces(size, [(0, values) for values in replicas])}
    path = save(tmp_path, 0, named, {}, None)
    assert (path / "__0_0.distcp").stat().st_size < 1.1 * size * 4
    for values in replicas:
        values.zero_()
    load(path, named, None)
    assert all(torch.equal(values, torch.arange(float(size))) for values in replicas)


def test_what_all_hold_is_written_by_each_in_part() -> None:
    """A tensor goes to the process that has least to write so far."""
    planner = SavePieces()
    planner.set_up_planner({str(number): cut(torch.zeros(100)) for number in range(9)})
    plans, metadata = planner.create_global_plan([planner.create_local_plan() for _ in range(3)])
    assert [len(plan.items) for plan in plans] == [3, 3, 3]
    assert sum(len(tensor.chunks) for tensor in metadata.state_dict_metadata.values()) == 9


def test_where_it_was_written_is_not_written_down(tmp_path: Path) -> None:
    path = save(tmp_path, 1, whole(state_of(1)), {}, None)
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in path.iterdir())


def test_torch_reads_it_with_its_own_tools(tmp_path: Path) -> None:
    state = state_of(3)
    path = save(tmp_path, 3, {name: cut(values, 1) for name, values in state.items()}, {}, None)
    read = empty_state()
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        torch_load(read, storage_reader=FileSystemReader(path), no_dist=True)
    assert all(torch.equal(read[name], values) for name, values in state.items())


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (0, []),
        (4, [(1, torch.zeros(4))]),
        (4, [(-1, torch.zeros(2))]),
        (4, [(0, torch.zeros(2, 2))]),
        (4, [(2, torch.zeros(1, 3))]),
        (4, [(0, torch.zeros(1, 1, 4))]),
        (4, [(0, torch.zeros(2)), (2, torch.zeros(2, dtype=torch.float64))]),
        (4, [(0, torch.zeros(4, dtype=torch.complex64))]),
    ],
)
def test_impossible_pieces_are_refused(size: int, pieces: list[tuple[int, torch.Tensor]]) -> None:
    with pytest.raises(ValueError, match=r"value|piece"):
        TensorPieces(size, pieces)


# Settings


def test_settings_and_step_are_read_again(tmp_path: Path) -> None:
    given = {"learning_rate": 0.1, "model": {"layers": 3}, "seeds": [1, 2], "none": None, "é": "\n"}
    path = save(tmp_path, 12, whole(state_of(12)), given, None)
    assert read_settings(path) == given
    assert read_manifest(path).step == 12


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), torch.zeros(1), {1: 2, "a": 3}])
def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="the settings: "):
        save(tmp_path, 1, whole(state_of(1)), {"value": value}, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "keep"), [(-1, 2), (1, 0)])
def test_a_negative_step_or_nothing_to_keep_is_refused(
    tmp_path: Path, step: int, keep: int
) -> None:
    with pytest.raises(ValueError, match="at least"):
        save(tmp_path, step, {}, {}, None, keep)


def test_nothing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path, 1, whole(state_of(1)), {}, None)
    load(path, whole(empty_state()), None)
    with pytest.raises(CheckpointError):
        save(tmp_path, 2, {"a": TensorPieces(3, [])}, {}, None)
    with pytest.raises(CheckpointError):
        load(path, {}, None)
    assert capfd.readouterr() == ("", "")
    heard = [record for record in caplog.records if "NullHandler" not in record.name]
    assert heard == []


# Mismatches


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"new": torch.zeros(1)}, "has no new, which the model has"),
        ({"step": None}, "has step, which the model has not"),
        ({"step": None, "0.bias": None}, "has 0.bias (and 1 more), which the model has not"),
        (
            {"0.bias": torch.zeros(31)},
            "0.bias has 30 values of torch.float32, but 31 of torch.float32 in the model",
        ),
        (
            {"0.half": torch.zeros(77)},
            "0.half has 77 values of torch.bfloat16, but 77 of torch.float32 in the model",
        ),
    ],
)
def test_another_model_is_refused(
    tmp_path: Path, change: dict[str, torch.Tensor | None], reason: str
) -> None:
    path = save(tmp_path, 1, whole(state_of(1)), {}, None)
    state = {
        name: values for name, values in (empty_state() | change).items() if values is not None
    }
    with pytest.raises(CheckpointError) as refused:
        load(path, whole(state), None)
    assert str(refused.value) == f"{path}: {reason}"
    assert all(not values.any() for values in state.values())


def test_values_that_no_process_holds_are_named(tmp_path: Path) -> None:
    gap = TensorPieces(9, [(0, torch.zeros(3)), (5, torch.zeros(4))])
    with pytest.raises(CheckpointError, match="a: no process holds values 3 to 4"):
        save(tmp_path, 1, {"a": gap}, {}, None)
    for held, values in (torch.zeros(1, 3), "3 to 11"), (torch.zeros(4, 2), "2 to 11"):
        part = TensorPieces(12, [(0, held)], row=3)  # of 4 rows: the first, or two columns
        with pytest.raises(CheckpointError, match=f"a: no process holds values {values}"):
            save(tmp_path, 1, {"a": part}, {}, None)
    with pytest.raises(CheckpointError, match="a: no process holds any of it"):
        save(tmp_path, 1, {"a": TensorPieces(9, [])}, {}, None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_what_there_was(tmp_path: Path) -> None:
    path = save(tmp_path, 1, whole(state_of(1)), {}, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (0, 600, 8_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(CheckpointError, match=r"\.unfinished-.*: File too large$"):
                save(tmp_path, 2, whole(state_of(2)), {}, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [path]
    assert loaded_step(path) == 1


def test_all_processes_know_the_results_and_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three processes, this is the second; the others say what they have found."""
    of_first: object = "first"

    def gathered(values: list[object], own: object, **_: object) -> None:
        values[:] = [of_first, own, "third"]

    monkeypatch.setattr("torch.distributed.get_rank", lambda _: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda _: 3)
    monkeypatch.setattr("torch.distributed.all_gather_object", gathered)
    processes = Processes(cast("ProcessGroup", "three"), tmp_path)
    assert (processes.rank, processes.size) == (1, 3)
    assert processes.together(lambda: "second") == ["first", "second", "third"]
    assert processes.first(lambda: pytest.fail("is for the first alone")) == "first"
    with pytest.raises(CheckpointError, match=f"{tmp_path}: ZeroDivisionError"):
        processes.together(lambda: 1 / 0)
    of_first = CheckpointError("it is full")
    with pytest.raises(CheckpointError, match="it is full"):
        processes.together(lambda: "second")
