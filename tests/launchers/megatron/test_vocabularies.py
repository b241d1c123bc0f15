"""Tokenizers without a size: as many words as their publishers' `config.json` say."""

from __future__ import annotations

import pytest

from bfpp.launchers.launch_file import read_launch_file
from bfpp.launchers.published.vocabularies import OF_KINDS, OF_NAMES

SMALL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2"
)

PUBLISHED = {
    "--tokenizer-model meta-llama/Llama-2-7b-hf": 32_000,
    "--tokenizer-model /checkpoints/llama2/tokenizer.model": 32_000,
    "--tokenizer-model meta-llama/Llama-3.1-70B": 128_256,
    "--tokenizer-model /checkpoints/Llama3/tokenizer.json": 128_256,
    "--tokenizer-model meta-llama/Llama-4-Scout-17B-16E": 202_048,
    "--tokenizer-model mistralai/Mistral-7B-v0.1": 32_000,
    "--tokenizer-model mistralai/Mistral-Nemo-Base-2407": 131_072,
    "--tokenizer-model mistralai/Mixtral-8x7B-v0.1": 32_000,
    "--tokenizer-model /checkpoints/mixtral/tokenizer.model": 32_000,
    "--tokenizer-model mistralai/Mixtral-8x22B-v0.1": 32_768,
    "--tokenizer-model Qwen/Qwen3-30B-A3B": 151_936,
    "--tokenizer-model deepseek-ai/DeepSeek-V3": 129_280,
    "--tokenizer-model moonshotai/Moonlight-16B-A3B": 163_840,
    "--tokenizer-model moonshotai/Kimi-K2-Base": 163_840,
    "--tokenizer-model openai/gpt-oss-120b": 201_088,
    "--tokenizer-model zai-org/GLM-4-9B": 151_552,
    "--tokenizer-model google/gemma-7b": 256_000,
    "--tokenizer-model openai-community/gpt2": 50_257,
    "--tokenizer-model nemotron_2_256k.model": 256_000,
    "--tokenizer-model nvidia/Nemo_Minitron-4B": 131_072,
    "--tokenizer-model multiMixV2.gpt4o_nc_sd.500000.128k.vocab.json": 131_072,
    "--tokenizer-model tekken.json": 131_072,
    "--vocab-file /data/bpe/vocab.json": 50_257,
    "--vocab-file bert-large-uncased/vocab.txt": 30_522,
    "--tokenizer-type GPT2BPETokenizer": 50_257,
    "--tokenizer-type TikTokenizer": 131_072,
    "--tokenizer-type Llama2Tokenizer": 32_000,
    "--tokenizer-type BertWordPieceLowerCase": 30_522,
    "--tokenizer-type BertWordPieceCase": 28_996,
}
UNKNOWN = "--tokenizer-model /data/ours.model"


@pytest.mark.parametrize("flag", PUBLISHED)
def test_a_known_tokenizer_has_the_published_number_of_words(flag: str) -> None:
    assumed = read_launch_file(f"pretrain_gpt.py {SMALL} {flag}").assumed
    assert f"{PUBLISHED[flag]:,} words: the vocabulary of {flag}" in assumed


def test_every_known_tokenizer_is_among_them() -> None:
    words = [flag.partition(" ")[2].lower() for flag in PUBLISHED]
    first = {next((name for name in OF_NAMES if name in each), None) for each in words}
    assert first - {None} == OF_NAMES.keys()
    assert {flag.split()[1] for flag in PUBLISHED} >= OF_KINDS.keys()


@pytest.mark.parametrize("flag", ["", UNKNOWN])
def test_a_tokenizer_that_is_not_known_counts_as_gpt_2s(flag: str) -> None:
    launch = read_launch_file(f"pretrain_gpt.py {SMALL} {flag}")
    assert "50,257 words: the vocabulary of GPT-2, as no other is given" in launch.assumed
    said = [each for each in launch.ignored if "50,257 words are predicted" in each.reason]
    assert [each.matters for each in said] == [True] * (flag == UNKNOWN)
