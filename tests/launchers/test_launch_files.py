"""Launch files to the letter: experiments that between them use every flag and every key.

Sizes of models are those of their publishers' configurations, and of Megatron-LM's and
torchtitan's own examples of them: Llama 3 8B, DeepSeek-V3 (of which 16 layers), gpt-oss 120B (of
which 8), GPT-3 and GPT-2 by the papers.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from inspect import getsource
from types import ModuleType
from typing import Any

import pytest

from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.megatron.command import PARTS
from bfpp.launchers.megatron.flag_kinds import FLAGS
from bfpp.launchers.torchtitan import settings
from bfpp.schedules import InvalidConfiguration
from tests.helpers.hand import GOLDEN, require_golden

CASES = {
    "latents": (
        "depth-first --model deepseek-v3 --layers 16 --cluster dgx-b200 --pp 2 --loops 2 "
        "--sequence 4 --microbatches 8 --dp 16 --cp 2 --ep 8 --sharding partial --dp-replicate 2 "
        "--precision mxfp8 --quantised-weights --dispatch deduplicated --shared-overlap "
        "--fused-router --moments bf16 --master-weights fp16 --main-gradients bf16 "
        "--recompute mla_up_proj,moe_act --cp-comm all-gather --no-pp-overlap --clipping"
    ),
    "windows": (
        "breadth-first --model gpt-oss-120b --layers 8 --cluster dgx-b200 --pp 2 --loops 2 "
        "--microbatches 4 --dp 8 --tp 2 --ep 4 --sharding full --precision nvfp4 "
        "--microbatch-overlap --quantised-weights --tp-overlap chunked --capacity-factor 1.25 "
        "--offload all --offload-share 0.5 --offload-modules core_attn,moe_act --cuda-graphs "
        "--seq-length 2048"
    ),
    "older": (
        "1f1b --model gpt-1.2b --cluster dgx-a100 --implementation megatron --pp 4 --cut 7,6,6,5 "
        "--microbatches 8 --microbatch-size 2 --dp 8 --tp 2 --sharding none --precision fp16 "
        "--update-rule sgd --recompute 2 --attention unfused --no-sequence-parallel "
        "--no-pp-overlap --no-dp-overlap"
    ),
    "gathered": (
        "zb1p --model llama3-8b --cluster dgx-h100 --pp 2 --loops 2 --microbatches 8 --dp 4 --tp 4 "
        "--cp 2 --sharding full --precision fp8-current --quantised-weights --tp-overlap chunked "
        "--gather-per step --reduce-per step --recompute full --quantised-activation "
        "--update-rule momentum --seq-length 1024"
    ),
    "one-rank": (
        "1f1b --model gpt-345m --cluster dgx-h100 --pp 1 --microbatches 2 --dp 2 --precision fp32"
    ),
    "half": (
        "1f1b --model gpt-345m --cluster dgx-h100 --pp 2 --microbatches 4 --precision fp16 "
        "--tied-embeddings --clipping --no-pp-overlap"
    ),
    "uneven": (
        "zb1p --model gpt-345m --cluster dgx-h100 --pp 3 --cut 9,8,7 --microbatches 8 "
        "--precision fp8-delayed"
    ),
}


RELEASES = {"megatron": "0.20", "torchtitan": "0.2"}


@pytest.mark.parametrize("framework", RELEASES)
@pytest.mark.parametrize("name", CASES)
def test_launch_files(bfpp: Callable[..., tuple[int, str, str]], name: str, framework: str) -> None:
    words = f"--format {framework} --release {RELEASES[framework]}"
    code, out, error = bfpp(f"experiment {CASES[name]} {words}")
    assert (code, error) == (0, "")
    require_golden(f"launch/{name}.{framework}.txt", out)


def test_every_flag_is_in_one_of_them() -> None:
    written = {flag for text in _texts("megatron") for flag in re.findall(r"--[\w-]+", text)}
    one_of_two = {"--fp4-param-gather", "--fp8-param-gather"}
    named = {each for part in PARTS for each in _strings(part)}
    flags = one_of_two | {each for each in named if re.fullmatch(r"--\w[\w-]+", each)}
    assert len(flags) > 80
    assert flags <= written
    assert flags <= FLAGS.keys()


def test_every_key_is_in_one_of_them() -> None:
    written = {key for text in _texts("torchtitan") for key in _keys(tomllib.loads(text))}
    known = {each for each in _strings(settings) if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", each)}
    assert len(known) > 20
    assert known <= written


def _texts(framework: str) -> list[str]:
    return [(GOLDEN / "launch" / f"{name}.{framework}.txt").read_text() for name in CASES]


def _strings(source: ModuleType | Callable[..., object]) -> Iterator[str]:
    """The texts in the source of a module or a function."""
    for node in ast.walk(ast.parse(getsource(source))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _keys(table: dict[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)


def test_a_group_of_no_devices_is_refused(tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        "[training]\nlocal_batch_size = 2\nglobal_batch_size = 4\nseq_len = 8192\n"
        "[parallelism]\ndata_parallel_shard_degree = 0\n"
    )
    code, out, err = bfpp("simulate job.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("microbatches", "sequence"),
    [(4, None), (5, 5), (7, 7), (8, None), (10, 5), (3, "3 micro-batches cannot fill 4 ranks"),
     (9, "2 rounds do not divide 9 micro-batches")],
)  # fmt: skip
def test_rounds_of_pytorch_are_sequences(tmp_path, microbatches, sequence):
    job = tmp_path / "job.toml"
    job.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        f"[training]\nlocal_batch_size = {microbatches}\nseq_len = 8192\n"
        "[parallelism]\npipeline_parallel_degree = 4\n"
        'pipeline_parallel_schedule = "Interleaved1F1B"\n'
    )
    if isinstance(sequence, str):
        with pytest.raises(InvalidConfiguration, match=rf"job.toml: .*_schedule: {sequence}"):
            read_launch_file(str(job))
        return
    read = read_launch_file(str(job)).experiment
    assert (read.microbatches, read.rule.parameters["sequence"]) == (microbatches, sequence)


def test_a_recipe_with_strange_keys_and_long_names_is_no_fault(tmp_path, monkeypatch, bfpp):
    monkeypatch.chdir(tmp_path)
    chain = ".".join(["megatron", *["bridge"] * 300])
    (tmp_path / "recipe.py").write_text(
        f"import megatron\nKEYS = {{([1], 1): 2}}\n\n\ndef f():\n    return {chain}(KEYS)\n"
    )
    code, out, err = bfpp("simulate recipe.py:f")
    assert (code, out, err.count("\n")) == (2, "", 1)
