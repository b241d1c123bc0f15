"""`bfpp export`: checkpoints that become Hugging Face's, and those that cannot."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.helpers.programs import MODEL
from bfpp.command_line import main
from bfpp.executor.checkpoint import read_manifest
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.model.sources import described_sizes
from bfpp.executor.run.history import LAST
from tests.executor.model.test_hugging_face_weights import LLAMA
from tests.helpers.run_program import started_here

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("one_thread")

Run = Callable[..., tuple[int, str, str]]

RUN = "run 1f1b --pp 2 --microbatches 2 --microbatch-size 1 --backend local --json"
LLAMA_RUN = "--context 8 --steps 2 --save-every 1"
SMALL = "--context 8 --layers 2 --hidden 16"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a Llama after steps 1 and 2, of a GPT, and of a function's model."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.json").write_text(json.dumps({**LLAMA, "bos_token_id": 7}))
    for words in (
        f"--model {folder}/config.json {LLAMA_RUN} --checkpoint {folder}/llama",
        f"{SMALL} --steps 1 --checkpoint {folder}/gpt",
        f"--model {MODEL} --steps 1 --checkpoint {folder}/own",
    ):
        with started_here():
            assert main(f"{RUN} {words}".split()) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with links to what was trained."""
    for each in trained.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)


def stored(file: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(file)
    return found


def test_the_last_checkpoint_is_written_or_that_of_a_step(bfpp: Run) -> None:
    code, out, err = bfpp("export llama --out last --json")
    assert (code, err.split()) == (
        0,
        ["wrote", "last/model.safetensors", "wrote", "last/config.json"],
    )
    record = json.loads(out)
    assert (record["step"], record["model_type"], record["precision"]) == (2, "llama", "float32")
    last = stored("last/model.safetensors")
    assert record["tensors"] == len(last)
    assert record["parameters"] == sum(each.numel() for each in last.values())
    assert bfpp("export llama --step 1 --out first")[0] == 0
    first = stored("first/model.safetensors")
    assert first.keys() == last.keys()
    assert all(not torch.equal(first[name], last[name]) for name in last)
    (path,) = Path("llama").glob("save-*-step-1")
    assert bfpp(f"export {path} --out again")[0] == 0
    again = stored("again/model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_weights_are_rounded_once(bfpp: Run) -> None:
    for precision in ("fp32", "bf16"):
        assert bfpp(f"export llama --precision {precision} --out {precision}")[0] == 0
    exact, rounded = (stored(f"{each}/model.safetensors") for each in ("fp32", "bf16"))
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)
    assert json.loads(Path("bf16/config.json").read_text())["dtype"] == "bfloat16"


def test_one_layer_is_in_memory_at_a_time() -> None:
    from bfpp.executor.model.transformer.hugging_face import WeightExport

    (first,) = Path("llama").glob("save-*-step-1")
    sizes = described_sizes(read_manifest(first).settings[LAST])
    export, allocations = WeightExport(first, sizes, torch.float32), Allocations()
    with allocations.seen():
        export.write(Path("weights.safetensors"))
    of_layer: dict[str, int] = {}
    for name, shape in export.shapes.items():
        layer = re.sub(r"(layers\.\d+).*", r"\1", name)
        of_layer[layer] = of_layer.get(layer, 0) + 4 * shape.numel()
    most = allocations.sizes([]).max()
    # A layer, its copy in the order of the format, and a piece that is being read.
    assert max(of_layer.values()) <= most < 2.2 * max(of_layer.values())
    assert most < sum(of_layer.values())


def test_what_else_a_config_says_is_kept(bfpp: Run) -> None:
    assert bfpp("export llama --config config.json --out new")[0] == 0
    config = json.loads(Path("new/config.json").read_text())
    assert (config["bos_token_id"], config["max_position_embeddings"]) == (7, 64)
    assert bfpp("export llama --out new")[0] == 0, "ours may be overwritten"
    config = json.loads(Path("new/config.json").read_text())
    assert ("bos_token_id" in config, config["max_position_embeddings"]) == (False, 8)


REFUSED = {
    "export nowhere": "CHECKPOINT: nowhere: No such file or directory",
    "export .": "CHECKPOINT: . is no checkpoint of bfpp run, and has none in it",
    "export llama --step 7": "CHECKPOINT: llama has no checkpoint of step 7, but of 1 and 2",
    "export {first} --step 1": "is one checkpoint; --step is for a directory of several",
    "export gpt": "CHECKPOINT: its model is not laid out as a Llama, Mistral or Qwen: it has",
    "export own": "CHECKPOINT: its model is regression of ",
    "export llama --config other.json": "--config: other.json is the config of another model: "
    "hidden 64, and",
    "export llama --config nothing.json": "--config: cannot read 'nothing.json': No such file",
    "export llama --config bert-6.6b": "--config: bert-6.6b is no config.json",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_exported_is_told_in_a_line(bfpp: Run, line: str) -> None:
    Path("other.json").write_text(json.dumps({**LLAMA, "hidden_size": 64}))
    (first,) = Path("llama").glob("save-*-step-1")
    code, out, err = bfpp(f"{line.format(first=first)} --out new")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert REFUSED[line] in err
    assert not Path("new").exists()


def test_a_damaged_checkpoint_is_refused(bfpp: Run) -> None:
    (first,) = Path("llama").glob("save-*-step-1")
    damaged = Path(shutil.copytree(first, "damaged"))
    data = next(damaged.glob("*.distcp"))
    data.write_bytes(bytes(data.stat().st_size))
    code, out, err = bfpp("export damaged --out new")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "CHECKPOINT: damaged/" in err
    assert "its SHA-256 is not that of what was saved" in err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_others_wrote_is_kept_unless_forced(bfpp: Run, name: str) -> None:
    Path("theirs").mkdir()
    Path("theirs", name).write_text('{"mine": 1}')
    code, out, err = bfpp("export llama --out theirs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--out: theirs/{name} already exists" in err
    assert [each.name for each in Path("theirs").iterdir()] == [name]
    assert bfpp("export llama --out theirs --force")[0] == 0
    assert b"mine" not in Path("theirs", name).read_bytes()


def test_safetensors_are_needed(bfpp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bfpp.launchers.own.model.find_spec", lambda _: None)
    code, out, err = bfpp("export llama --out new")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'bfpp[hf]'" in err


def test_a_full_disk_leaves_nothing(bfpp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bfpp.executor.model.transformer.hugging_face.WeightExport.values", full)
    code, _, err = bfpp("export llama --out new")
    assert (code, err) == (
        2,
        "bfpp export: --out: new/model.safetensors: No space left on device\n",
    )
    assert not Path("new").exists()


def test_transformers_opens_what_is_exported(bfpp: Run) -> None:
    transformers = pytest.importorskip("transformers")
    assert bfpp("export llama --out new")[0] == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained("new").state_dict()
    ours = stored("new/model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
