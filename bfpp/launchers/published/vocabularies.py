"""Sizes of tokenizers' vocabularies, for launch files that name a tokenizer and no size.

Sizes are those of the tokenizers' own files, as published with their models.
"""

from __future__ import annotations

from bfpp.launchers.arguments import Arguments

OF_NAMES = {
    "nemotron_2_256k": 256_000,
    "nemo_minitron": 131_072,
    "multimixv2": 131_072,
    "tekken": 131_072,
    "mixtral-8x22b": 32_768,
    "mistral-nemo": 131_072,
    "mistral": 32_000,
    "mixtral": 32_000,
    "llama-4": 202_048,
    "llama-3": 128_256,
    "llama3": 128_256,
    "llama-2": 32_000,
    "llama2": 32_000,
    "qwen": 151_936,
    "deepseek": 129_280,
    "moonlight": 163_840,
    "kimi": 163_840,
    "gpt-oss": 201_088,
    "glm-4": 151_552,
    "gemma": 256_000,
    "bpe/vocab.json": 50_257,
    "gpt2": 50_257,
    "vocab.txt": 30_522,
}
"""By a part of the tokenizer's name or path, in small letters; the first that is in it counts."""

OF_KINDS = {
    "GPT2BPETokenizer": 50_257,
    "TikTokenizer": 131_072,
    "Llama2Tokenizer": 32_000,
    "BertWordPieceLowerCase": 30_522,
    "BertWordPieceCase": 28_996,
}
"""By `--tokenizer-type`, where all of that type, or most, have the same."""

DEFAULT = OF_KINDS["GPT2BPETokenizer"]

NAMING = "--tokenizer-model", "--vocab-file"


def vocabulary_of(given: Arguments) -> int:
    """The number of words that is given, or that of the tokenizer; says what it assumes."""
    if (words := given["--vocab-size"]) is not None:
        return int(words)
    for name in NAMING:
        text = (given[name] or "").lower()
        for part, size in OF_NAMES.items():
            if part in text:
                return _assumed(given, size, f"the vocabulary of {name} {given.shown(name)}")
    kind = given["--tokenizer-type"]
    if kind in OF_KINDS:
        return _assumed(given, OF_KINDS[kind], f"the vocabulary of --tokenizer-type {kind}")
    for name in (*NAMING, "--tokenizer-type"):
        if name in given:
            given.replace(name, f"its vocabulary is not known: {DEFAULT:,} words are predicted")
    return _assumed(given, DEFAULT, "the vocabulary of GPT-2, as no other is given")


def _assumed(given: Arguments, size: int, of: str) -> int:
    given.assume(f"{size:,} words: {of}", "model")
    return size
