"""DeepSpeed's JSON: an experiment by itself, or merged with Megatron-DeepSpeed's flags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bfpp.launchers.arguments import FIELD, Arguments, Ignored, Words
from bfpp.launchers.deepspeed import programs
from bfpp.launchers.deepspeed.batches import Batch, batch_of
from bfpp.launchers.deepspeed.settings import (
    ACCUMULATED,
    AUTO,
    BATCH,
    CLIPPING,
    MICRO,
    OPTIMIZER,
    PRECISIONS,
    NamedWords,
    arguments_of,
    optimizer_of,
    others,
    settings_of,
    translated,
)
from bfpp.launchers.megatron.compute import compute_of, precision_of
from bfpp.launchers.megatron.flag_kinds import FLAGS
from bfpp.launchers.megatron.reading import IMPLEMENTATION
from bfpp.launchers.megatron.step import Values, groups_of, replicas_of
from bfpp.launchers.megatron.without_effect import reason_of
from bfpp.launchers.published.models import published_model
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.shell_calls import file_beside
from bfpp.schedules import InvalidConfiguration

NAMING = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
"""Options that name the JSON; the last one alone says only that DeepSpeed is used."""

OF_MEGATRON = ("--num-layers", "--hidden-size", "--encoder-num-layers")
"""Flags by which a program is Megatron-DeepSpeed's."""

OF_BATCH = {BATCH: "--global-batch-size", MICRO: "--micro-batch-size"}
"""Megatron-DeepSpeed's flags for the batch, which it passes on to DeepSpeed."""


class Named(NamedTuple):
    """An option, and the file that it names."""

    option: str
    file: str


class FlagsBeside(NamedTuple):
    """Flags with those of a JSON, the names that these have in it, and what is left out of it."""

    flags: dict[str, Words]
    called: dict[str, str]
    ignored: list[Ignored]


class Alone(NamedTuple):
    """The flags and values that a JSON and a program's options say, and what is left out."""

    given: Arguments
    values: Values
    understood: tuple[str, ...]
    ignored: tuple[Ignored, ...]


def named_file(given: Mapping[str, Words]) -> Named | None:
    """The option that names DeepSpeed's JSON, and the file."""
    said = (Named(name, given[name][0]) for name in NAMING if len(given.get(name, ())) == 1)
    return next(said, None)


def is_megatrons(given: Mapping[str, Words]) -> bool:
    """True for flags of Megatron-DeepSpeed."""
    return any(name in given for name in OF_MEGATRON)


def settings_named(source: str, name: str, written: Mapping[str, str]) -> dict[str, Words]:
    """The settings of a JSON that a script writes, or of a file beside it."""
    if name in written:
        return settings_of(name, written[name])
    file = file_beside(name, Path(source).parent) or file_beside(name, Path())
    if file is None:
        raise InvalidConfiguration(FIELD, f"{name}, DeepSpeed's file, is not there")
    return settings_of(name, text_of_file(str(file)))


def beside_flags(
    source: str, flags: Mapping[str, Words], written: Mapping[str, str]
) -> FlagsBeside:
    """Flags of Megatron-DeepSpeed, and what its JSON says beside them."""
    if (named := named_file(flags)) is None:
        return FlagsBeside({**flags}, {}, [])
    option, file = named
    own = {name: words for name, words in flags.items() if name != option}
    try:
        settings = settings_named(source, file, written)
    except InvalidConfiguration as error:
        reason = f"{error.reason}: what it says is left out"
        return FlagsBeside(own, {}, [Ignored(option, file, True, reason)])
    given = arguments_of(file, settings)
    found = translated(given)
    for name, flag in OF_BATCH.items():
        if given[name] is not None and flag not in own:
            found[flag] = NamedWords(name, given.given[name])
    same = {flag for flag, (_, words) in found.items() if flag in own and _alike(flag, own, words)}
    ignored = [*_said_twice(given, own, found, same), *_left_to_program(given, own)]
    called = {
        flag: setting.name if setting.name in given else ""
        for flag, setting in found.items()
        if flag not in same
    }
    reported = {*called.values(), *(each.name for each in ignored)}
    ignored += [
        Ignored(name, given.shown(name), False, "is what is predicted")
        for name in given.given
        if name in given.read and name not in reported
    ]
    words = {flag: setting.words for flag, setting in found.items()}
    filled = dict.fromkeys(settings, True)
    return FlagsBeside({**own, **words}, called, [*ignored, *others(given, settings, filled)])


def _alike(flag: str, own: Mapping[str, Words], words: Words) -> bool:
    """True for a flag whose value is that of the JSON."""
    read = FLAGS[flag].kind.read
    return bool(read(own[flag]) == read(words))


def _said_twice(
    given: Arguments,
    own: Mapping[str, Words],
    found: Mapping[str, NamedWords],
    same: Collection[str],
) -> Iterator[Ignored]:
    """Settings that flags say, too: where they differ, the JSON counts."""
    for flag, (name, words) in found.items():
        if flag in same and name in given:
            yield Ignored(name, given.shown(name), False, f"as {flag} says")
        elif flag in own and flag not in same:
            reason = f"{name} of {given.source} counts: {' '.join(words) or 'true'}"
            yield Ignored(flag, " ".join(own[flag]), True, reason)


def _left_to_program(given: Arguments, own: Mapping[str, Words]) -> Iterator[Ignored]:
    """Settings that Megatron-DeepSpeed decides itself."""
    for name, flag in OF_BATCH.items():
        if given[name] is not None and flag in own:
            same = own[flag] == given.given[name]
            said = f"{flag} {' '.join(own[flag])}"
            reason = (
                f"as {flag} says" if same else f"{said} is predicted: the program says the batch"
            )
            yield Ignored(name, given.shown(name), not same, reason)
    if given[ACCUMULATED] is not None:
        reason = "follows from the batch and the replicas"
        yield Ignored(ACCUMULATED, given.shown(ACCUMULATED), False, reason)
    if given[OPTIMIZER] is not None:
        reason = "the program makes its own: --optimizer"
        yield Ignored(OPTIMIZER, given.shown(OPTIMIZER), False, reason)


def alone(
    source: str,
    file: str,
    settings: Mapping[str, Words],
    options: Mapping[str, Words] | None,
    gpus: int | None,
) -> Alone:
    """The experiment of a JSON and the options of a program that has no flags of Megatron-LM."""
    named, called = programs.renamed(options or {})
    given = arguments_of(file, settings)
    own = Arguments(source, named, programs.KNOWN, called)
    found = translated(given)
    filled = {} if options is None else dict(_filled(given, settings, own))
    if settings.get(CLIPPING) == AUTO:
        found["--clip-grad"] = NamedWords(CLIPPING, (str(own[programs.CLIPPING]),))
    found |= _precision(given, settings, own, alone=options is None)
    if (kind := given[OPTIMIZER] or own[programs.OPTIMIZER]) is not None:
        found["--optimizer"] = NamedWords(OPTIMIZER, (optimizer_of(kind),))
    if own[programs.RECOMPUTES]:
        found["--checkpoint-activations"] = NamedWords(called[programs.RECOMPUTES], ())
    together = _degree(found, "--tensor-model-parallel-size") * _degree(
        found, "--ds-sequence-parallel-size"
    )
    micro, accumulated = own[programs.MICRO], own[programs.ACCUMULATED]
    batch = batch_of(given, gpus and max(gpus // together, 1), micro, accumulated)
    found |= _batch_flags(batch)
    flags = Arguments(
        source,
        {flag: setting.words for flag, setting in found.items()},
        FLAGS,
        {flag: setting.name for flag, setting in found.items()},
    )
    values = _values(flags, own, gpus or (batch.replicas and batch.replicas * together))
    for said in (given, own):
        flags.assumed |= said.assumed
    ignored = (
        *flags.ignored(reason_of),
        *others(given, settings, filled),
        *own.ignored(programs.reason_of),
    )
    return Alone(flags, values, (*given.understood, *own.understood), ignored)


def _degree(found: Mapping[str, NamedWords], flag: str) -> int:
    return int(found[flag].words[0]) if flag in found else 1


def _filled(
    given: Arguments, settings: Mapping[str, Words], own: Arguments
) -> Iterator[tuple[str, bool]]:
    """Settings that are "auto", and whether the program's options say them."""
    said = {
        MICRO: programs.MICRO in own,
        ACCUMULATED: programs.ACCUMULATED in own,
        CLIPPING: True,  # by default
        OPTIMIZER: programs.OPTIMIZER in own,
        **{name: PRECISIONS[name].lstrip("-") in own for name in PRECISIONS},
    }
    said[BATCH] = (MICRO in given or said[MICRO]) and (ACCUMULATED in given or said[ACCUMULATED])
    precision = any(said[name] or given[name] for name in PRECISIONS)
    for name in settings:
        yield name, said.get(name, False) or (name in PRECISIONS and precision)


def _precision(
    given: Arguments, settings: Mapping[str, Words], own: Arguments, *, alone: bool
) -> dict[str, NamedWords]:
    """The precision that the program says, or is assumed, where the file leaves it open."""
    program = [name for name in ("bf16", "fp16") if own[name]]
    if any(given[name] for name in PRECISIONS):
        return {}
    if program:
        return {f"--{program[0]}": NamedWords(own.called[program[0]], ())}
    if alone and any(settings.get(name) == AUTO for name in PRECISIONS):
        own.assume("precision bf16: the file leaves it to the program", "precision")
        return {"--bf16": NamedWords("bf16.enabled", ())}
    return {}


def _batch_flags(batch: Batch) -> dict[str, NamedWords]:
    return {
        "--micro-batch-size": NamedWords(MICRO, (str(batch.micro),)),
        "--global-batch-size": NamedWords(BATCH, (str(batch.whole),)),
    }


def _values(flags: Arguments, own: Arguments, gpus: int | None) -> Values:
    """Values of the experiment; of the model, if the program names one that is known."""
    values: dict[str, Any] = {"schedule": "1f1b", "pp": 1, "implementation": IMPLEMENTATION}
    name, tokens = own[programs.MODEL], own[programs.SEQUENCE]
    model = published_model(name) if name else None
    if model is not None:
        values["model"] = model
        if tokens is None:
            sentence = f"{model.sequence:,} tokens in a sequence, as the model is published"
            own.assume(sentence, "seq_length", "model")
    elif name:
        own.replace(programs.MODEL, "its sizes are not known: --model says a model")
    if tokens is not None:
        values["seq_length"] = tokens
    values |= groups_of(flags, model, gpus)
    values |= {**replicas_of(flags, values), **precision_of(flags), **compute_of(flags, model)}
    return values
