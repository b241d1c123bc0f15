"""Weights under torchtitan's names: the same numbers there and back, and the same scores."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from bfpp.command_line import main
from bfpp.executor.checkpoint import TensorPieces, load
from bfpp.executor.checkpoint.manifest import METADATA_FILE, read_manifest
from bfpp.executor.checkpoint.state_dicts import StateDict
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.names import TORCHTITAN
from bfpp.executor.model.transformer.torchtitan import TorchtitanWeights, form_for, form_of
from bfpp.executor.model.transformer.transformer import Rotary, turned
from bfpp.schedules import InvalidConfiguration
from tests.executor.model.test_hugging_face_weights import CONFIGS, layers_of, sizes_of

pytestmark = pytest.mark.usefixtures("one_thread", "one_process")

NAMES = {
    # state_dict() of the Llama 3 of v0.2.2 (commit 73a0e6979), whose scores ours equals
    (0, 2): (
        "tok_embeddings", "layers.{}.attention.wq", "layers.{}.attention.wk",
        "layers.{}.attention.wv", "layers.{}.attention.wo", "layers.{}.feed_forward.w1",
        "layers.{}.feed_forward.w2", "layers.{}.feed_forward.w3", "layers.{}.attention_norm",
        "layers.{}.ffn_norm", "norm", "output",
    ),
    # its adapter to Hugging Face's names at commit b5bcd76c66
    (0, 3): (
        "tok_embeddings", "layers.{}.attention.qkv_linear.wq",
        "layers.{}.attention.qkv_linear.wk", "layers.{}.attention.qkv_linear.wv",
        "layers.{}.attention.wo", "layers.{}.feed_forward.w1", "layers.{}.feed_forward.w3",
        "layers.{}.feed_forward.w2", "layers.{}.attention_norm", "layers.{}.ffn_norm", "norm",
        "lm_head",
    ),
}  # fmt: skip
"""Names of a Llama's matrices and norms in torchtitan, by release."""

RUN = "run 1f1b --pp 2 --steps 1 --microbatches 2 --microbatch-size 1 --context 12 --json"


def trained(folder: Path, name: str, *more: str) -> Path:
    """The config, beside a checkpoint of a model of it."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIGS[name]))
    words = f"{RUN} --backend local --precision fp64 --model {config} --checkpoint {folder}/saved"
    assert main([*words.split(), *more]) == 0
    return config


def stored(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint of ours, flat."""
    (saved,) = (folder / "saved").glob("save-*")
    manifest = read_manifest(saved).tensors
    values = {name: torch.empty(each.size, dtype=each.dtype) for name, each in manifest.items()}
    load(saved, {name: TensorPieces(len(each), [(0, each)]) for name, each in values.items()}, None)
    return values


@pytest.mark.parametrize(
    ("name", "release"), [*zip(["llama 3.1", "qwen3"], TORCHTITAN, strict=True)]
)
def test_weights_are_the_same_there_and_back(
    name: str, release: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = trained(tmp_path, name), tmp_path / "theirs"
    number = f"{release[0]}.{release[1]}"
    words = f"export {tmp_path}/saved --names torchtitan --release {number} --precision fp64"
    assert main(f"{words} --out {out}".split()) == 0, capsys.readouterr().err
    assert main(f"{words} --out {out}".split()) == 0  # over its own
    sizes, expected = sizes_of(config), stored(tmp_path)
    weights = TorchtitanWeights(out, sizes, StateDict(out))
    for layer, make in enumerate(layers_of(sizes)):
        for key, parameter in weights.fill(
            layer, lambda make=make: make().double()
        ).named_parameters():
            own = "0.tokens.weight" if sizes.tied and key == "scores.weight" else f"{layer}.{key}"
            assert torch.equal(parameter.detach().flatten(), expected[own])
    again = f"{RUN} --backend local --precision fp64 --model {config} --weights {out} --verify"
    capsys.readouterr()
    assert main(again.split()) == 0
    assert json.loads(capsys.readouterr().out)["exact"] is True


@pytest.mark.parametrize("release", NAMES)
def test_the_names_are_torchtitans(release: tuple[int, int], tmp_path: Path) -> None:
    trained(tmp_path, "llama")
    out = tmp_path / "theirs"
    number = f"{release[0]}.{release[1]}"
    words = f"export {tmp_path}/saved --names torchtitan --release {number} --out {out}"
    assert main(words.split()) == 0
    found = StateDict(out)
    assert (
        dcp.FileSystemReader(out).read_metadata().state_dict_metadata.keys() == found.shapes.keys()
    )
    known = {f"{name.format(layer)}.weight" for name in NAMES[release] for layer in range(2)}
    assert found.shapes.keys() == known
    assert form_of(found) is TORCHTITAN[release]


def test_what_lies_where_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out = trained(tmp_path, "llama"), tmp_path / "theirs"
    assert main(f"export {tmp_path}/saved --names torchtitan --out {out}".split()) == 0
    known, opened = Path.open, []

    def counted(path: Path, *how: str) -> object:
        opened.append(path.name)
        return known(path, *how)

    monkeypatch.setattr(Path, "open", counted)
    model = TransformerSource(sizes_of(config), weights=out).load(0)
    assert [layer() for layer in model.layers]
    assert opened.count(METADATA_FILE) == 1


def test_what_others_wrote_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "theirs"
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of one process
        dcp.save({"a": torch.zeros(2)}, checkpoint_id=out, no_dist=True)
    assert main(f"export {tmp_path}/saved --names torchtitan --out {out}".split()) == 2
    assert "bfpp did not write it" in capsys.readouterr().err


def test_the_release_before_counts() -> None:
    newest = TORCHTITAN[max(TORCHTITAN)]
    assert form_for(None) is form_for((9, 0)) is newest
    assert form_for((0, 2)) is form_for((0, 1)) is TORCHTITAN[0, 2]


def test_turning_neighbours_gives_the_same_scores() -> None:
    """Of queries and keys, as complex numbers of neighbours: how torchtitan turns them."""
    form = TORCHTITAN[0, 3]
    sizes = replace(sizes_of_llama(), heads=4, kv_heads=2, head_dim=8)
    chance = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, 6, sizes.hidden, generator=chance, dtype=torch.float64)
    cosine, sine = Rotary(500.0).cosines_and_sines(6, 8, hidden)
    angles = torch.complex(cosine, sine)
    ours, theirs = [], []
    for name, heads in (("attention.query.weight", 4), ("attention.key_value.weight", 2)):
        rows = heads * 8 * (2 if "key" in name else 1)
        weight = torch.randn(rows, sizes.hidden, generator=chance, dtype=torch.float64)
        (_, other), *_ = form.theirs(1, name, weight, sizes)
        own = (hidden @ weight[: heads * 8].T).unflatten(-1, (heads, 8))
        pairs = torch.view_as_complex((hidden @ other.T).unflatten(-1, (heads, 4, 2)).contiguous())
        ours.append(turned(own, cosine, sine)[:, :, :2])
        theirs.append(torch.view_as_real(pairs * angles).flatten(3)[:, :, :2])
        assert torch.equal(form.ours(name, 0, other, sizes), weight[: heads * 8])
    scores = [(queries * keys).sum(-1) for queries, keys in (ours, theirs)]
    torch.testing.assert_close(*scores)


def sizes_of_llama():  # type: ignore[no-untyped-def]
    from bfpp.executor.model.transformer.transformer import TransformerSizes

    return TransformerSizes(
        layers=2, hidden=32, heads=4, context=12, vocabulary=300, mlp=48, kv_heads=2, gated=True,
        norm="rms", positions="rotary", biases=False, query_biases=False,
    )  # fmt: skip


def test_what_is_not_theirs_is_refused_in_a_line(tmp_path: Path) -> None:
    sizes = sizes_of_llama()
    names = {f"{name.format(layer)}.weight" for name in NAMES[0, 2] for layer in range(2)}
    state = {name: torch.zeros(4, 4) for name in names}

    def told(state: dict[str, Tensor], sizes=sizes) -> str:  # type: ignore[no-untyped-def]
        place = tmp_path / str(len([*tmp_path.iterdir()]))
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            dcp.save(dict(state), checkpoint_id=place)
        with pytest.raises(InvalidConfiguration) as caught:
            TorchtitanWeights(place, sizes, StateDict(place)).fill(1, layers_of(sizes)[1])
        return str(caught.value)

    assert "of shape (4, 4), and the model takes (32,)" in told(state)
    biased = {**state, "layers.1.attention.wq.bias": torch.zeros(4)}
    assert "has layers.1.attention.wq.bias, which the model has not" in told(biased)
    assert "has 2 layers, and the model 3" in told(state, replace(sizes, layers=3))
    assert "the model has a window" in told(state, replace(sizes, window=4))
    assert "the model has biases" in told(state, replace(sizes, query_biases=True))


def test_a_model_without_these_layers_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "qwen2")
    capsys.readouterr()
    assert main(f"export {tmp_path}/saved --names torchtitan --out {tmp_path}/theirs".split()) == 2
    assert "torchtitan's Llama 3 or Qwen3, and the model has biases" in capsys.readouterr().err
    words = f"export {tmp_path}/saved --release 0.2 --out {tmp_path}/theirs"
    assert main(words.split()) == 2
    assert "--release: is for --names torchtitan" in capsys.readouterr().err
