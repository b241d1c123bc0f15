"""Launch files of other frameworks as experiments, and the settings that were left out.

Nothing in them is executed: scripts are split into words, Python is parsed, YAML is read as texts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bfpp.launchers.arguments import FIELD, Arguments, Ignored, Words, shortened
from bfpp.launchers.deepspeed import reading as deepspeed
from bfpp.launchers.deepspeed.settings import settings_of
from bfpp.launchers.megatron.reading import arguments_of, values_of
from bfpp.launchers.megatron.recipes import (
    NOT_PLAIN,
    adjusted,
    cluster_of,
    flags_of,
    gpus_of,
    model_of_recipe,
    sections_left_out,
)
from bfpp.launchers.megatron.without_effect import reason_of
from bfpp.launchers.megatron.yaml.functional_tests import (
    OF_TESTS,
    beside_flags_of_test,
    flags_of_test,
)
from bfpp.launchers.megatron.yaml.nemo import (
    MARK,
    flags_of_nemo,
    gpus_of_trainer,
    is_nemo,
    refusal_of,
)
from bfpp.launchers.megatron.yaml.primus import (
    GPUS_OF_NODE,
    flags_of_primus,
    gpus_of_nodes,
    module_of,
)
from bfpp.launchers.nanotron import reading as nanotron
from bfpp.launchers.recognise import JSON, RECIPE, TOML, YAML, is_recipe
from bfpp.launchers.sources.command_words import SCRIPTS, Program, is_command, program_of
from bfpp.launchers.sources.documents import leaves, text_of_file, yaml_table
from bfpp.launchers.sources.interpolation import interpolated
from bfpp.launchers.sources.recipe_code import filled
from bfpp.launchers.sources.shell import read_script
from bfpp.launchers.sources.shell_calls import POSITIONAL, how_to_give, script_call, unknown_in
from bfpp.launchers.sources.shell_parts import LeftOut, Script
from bfpp.launchers.torchtitan import reading as torchtitan
from bfpp.launchers.torchtitan.configurations import CONFIGURATIONS
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.presets.files import read_toml

CLUSTER = "dgx-h100"
"""The cluster of launch files, which name none."""

QUIET = (
    "cd", "echo", "mkdir", "set", "source", ".", "exit", "module", "pip", "date", "wait", "sleep",
    "printf", "true", "trap", "ulimit", "unset", "shift", "git", "export", "nvidia-smi", "rm",
    "chmod", "cp", "touch", "pwd", "umask", "tee", "scontrol", "hostname", "cat", "sed", "awk",
    "grep", "wget", "curl", "ls",
)  # fmt: skip
"""Commands that prepare a run; they are named, as they may set what a script reads."""

MEETING = ("MASTER_ADDR", "MASTER_PORT", "RANK", "NODE_RANK", "LOCAL_RANK")
"""Variables that say where processes meet."""

MAY_SET = ("source", ".", "module")

TRAINS = re.compile("train|tune")
OTHERWISE = re.compile("generat|inference|server|convert|preprocess|export|eval|prompt|msdp|analy")
"""Parts of the names of programs that train, and that do something else."""

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class LaunchFile(NamedTuple):
    """An experiment, and the use that was made of each setting of its file.

    `assumed` has sentences, each with the options that say another value instead.
    """

    source: str
    framework: str
    experiment: Experiment
    understood: tuple[str, ...]
    ignored: tuple[Ignored, ...]
    assumed: Mapping[str, tuple[str, ...]]


def read_launch_file(name: str) -> LaunchFile:
    """The launch file of that name, or a command; raises `InvalidConfiguration` in one line."""
    try:
        if is_command(name):
            return _command(name)
        if is_recipe(name):
            return _recipe(name)
        return next(read for ends, read in READERS.items() if name.endswith(ends))(name)
    except InvalidConfiguration as error:
        if error.field == FIELD:
            raise
        source = "the command" if is_command(name) else name
        reason = f"{source}: {error.field}: {error.reason}"
        raise InvalidConfiguration(FIELD, reason) from None


def _command(text: str) -> LaunchFile:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidConfiguration(FIELD, f"the command cannot be split: {error}") from None
    environment: dict[str, str] = {}
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        environment[assigned[1]] = assigned[2]
        words = words[1:]
    program = program_of(words, environment)
    if program is not None:
        return _of_program("the command", program, ())
    call = script_call(words, Path()) if words else None
    if call is None:
        reason = (
            "the command names no program that trains, as torchrun ... pretrain_gpt.py does, nor a "
            "script that is there"
        )
        raise InvalidConfiguration(FIELD, reason)
    return _script(str(call.file), call.arguments, environment)


def _of_program(
    source: str,
    program: Program,
    further: Iterable[Ignored],
    written: Mapping[str, str] = MappingProxyType({}),
) -> LaunchFile:
    """The experiment of a program's settings; words that are none are named.

    A script has `written` files, of which one may be DeepSpeed's.
    """
    other = OTHERWISE.search(program.name)
    if other and not TRAINS.search(program.name):
        reason = f"{source}: {program.name} trains nothing, by its name ({other[0]})"
        raise InvalidConfiguration(FIELD, reason)
    stray = [
        Ignored(word, "", True, "a word that is no flag, nor the value of one")
        for word in program.others
    ]
    if unknown := program.devices.unknown:
        stray.append(Ignored(*unknown, True, "is only known when it runs: one node is predicted"))
    if is_torchtitans(program):
        return _of_torchtitan(source, program, [*stray, *further])
    others, gpus = [*stray, *further], program.devices.gpus
    named = deepspeed.named_file(program.given)
    if named and not deepspeed.is_megatrons(program.given):
        own = {name: words for name, words in program.given.items() if name != named.option}
        settings = deepspeed.settings_named(source, named.file, written)
        read = deepspeed.alone(source, named.file, settings, own, gpus)
        return _deepspeed_file(read, others)
    found = deepspeed.beside_flags(source, program.given, written)
    others, bert = [*found.ignored, *others], "bert" in program.name
    return megatron_file(source, found.flags, gpus, others, called=found.called, bert=bert)


def _deepspeed_file(read: deepspeed.Alone, further: Iterable[Ignored] = ()) -> LaunchFile:
    launch = launched("DeepSpeed", read.given, read.values, [*read.ignored, *further])
    return launch._replace(understood=read.understood)


def _json(path: str) -> LaunchFile:
    """DeepSpeed's JSON alone: no model is in it, and no number of GPUs."""
    settings = settings_of(path, text_of_file(path))
    return _deepspeed_file(deepspeed.alone(path, path, settings, None, None))


def _script(
    path: str, arguments: Sequence[str] = (), environment: Mapping[str, str] = MappingProxyType({})
) -> LaunchFile:
    """A shell script: the last command in it that trains."""
    script = read_script(path, text_of_file(path), arguments, environment)
    known = {name: str(value) for name, value in script.variables.items()}
    launches = [
        (command, program)
        for command in script.commands
        if (program := program_of(command.words, {**known, **command.environment}))
    ]
    if not launches:
        reason = f"{path} has no command that trains, as torchrun ... pretrain_gpt.py does"
        if script.left_out:
            left_out = script.left_out[-1]
            reason += ", but where it depends on what runs: " + _place(left_out)
        raise InvalidConfiguration(FIELD, reason + _what_it_needs(path, script, ""))
    trains = [each for each in launches if TRAINS.search(each[1].name)]
    chosen, program = (trains or launches)[-1]
    try:
        return _of_program(path, program, _left_out(path, script, chosen.line), script.files)
    except InvalidConfiguration as error:
        needs = _what_it_needs(path, script, error.reason)
        raise InvalidConfiguration(error.field, error.reason + needs) from None


def _place(left_out: LeftOut) -> str:
    return f"line {left_out.line}, {shortened(left_out.text)}"


def _what_it_needs(path: str, script: Script, reason: str) -> str:
    """The part of a script that decides what is missing or unknown, and how to say its variable."""
    said = unknown_in(reason)
    arguments = [f"it {how_to_give(name, path)}" for name in said if name in POSITIONAL]
    parts = [
        f"{_place(left_out)}, {how_to_give(name, path)}"
        for left_out in script.left_out
        for name in left_out.unknown
    ]
    others = [f"it {how_to_give(name, path)}" for name in said]
    return "".join(f"; {each}" for each in [*arguments, *parts, *others][:1])


def _left_out(path: str, script: Script, chosen: int) -> Iterator[Ignored]:
    """Lines of a script that are not understood."""
    for line, text, unknown in script.left_out:
        why = how_to_give(unknown[0], path) if unknown else "depends on what runs"
        yield Ignored(f"line {line}", text[:60], True, f"{why}, and is left out")
    for _, text, [name] in script.unset:
        why = f"not set, as far as a test asks for that; -- NAME=VALUE bash {path} sets one"
        yield Ignored(f"${name}", text[:60], name not in MEETING, why)
    for command in script.commands:
        name = Path(command.words[0]).name
        if command.line != chosen:
            matters = name not in QUIET or name in MAY_SET
            text = " ".join(command.words)[:60]
            yield Ignored(f"line {command.line}", text, matters, "a command that is not executed")


def _yaml(path: str) -> LaunchFile:
    """The YAML of a functional test of Megatron-LM, of NeMo, of Primus, or of nanotron."""
    table = yaml_table(path, text_of_file(path))
    flags = table.get(OF_TESTS)
    if (module := module_of(table)) is not None:
        return _primus(path, module)
    if nanotron.is_nanotron(table):
        own = nanotron.arguments_of(path, leaves(path, table))
        values = nanotron.values_of(own, _name(path))
        return launched("nanotron", own, values, own.ignored(nanotron.reason_of))
    if not isinstance(flags, dict) and is_nemo(settings := leaves(path, table)):
        if refusal := refusal_of(settings):
            raise InvalidConfiguration(FIELD, f"{path}: {refusal}")
        known, reasons = interpolated(settings)
        given, left_out = flags_of_nemo(known, reasons)
        return megatron_file(path, given, gpus_of_trainer(known), left_out)
    if not isinstance(flags, dict):
        reason = (
            f"{path} has none of: a table {OF_TESTS}, as Megatron-LM's functional tests have; "
            f"NeMo's {MARK}; Primus's modules; nanotron's parallelism and tokens"
        )
        raise InvalidConfiguration(FIELD, reason)
    return megatron_file(path, flags_of_test(path, flags), None, beside_flags_of_test(table))


def _toml(path: str) -> LaunchFile:
    """Settings of torchtitan in TOML."""
    return torchtitan_file(path, leaves(path, read_toml(FIELD, path)), None)


def is_torchtitans(program: Program) -> bool:
    """True for a program of torchtitan."""
    named = {CONFIG_FILE, "--config_file", "--module"} & program.given.keys()
    return bool(named) or "torchtitan" in program.name or program.name.endswith("run_train.sh")


def _of_torchtitan(source: str, program: Program, further: Iterable[Ignored]) -> LaunchFile:
    """The settings of a file that a command names, under those of the command itself."""
    own: dict[str, Words] = {}
    for name, words in program.given.items():
        chosen = [match[1] for word in words if (match := CHECKPOINTING.fullmatch(word))]
        name = {"--module": "launch.module", "--config": "launch.config"}.get(name, name[2:])
        own[name] = tuple(word for word in words if not CHECKPOINTING.fullmatch(word))
        if chosen:
            own["activation_checkpoint.mode"] = (chosen[-1],)
    files = [own.pop(name.removeprefix("--"), ()) for name in (CONFIG_FILE, "--config_file")]
    for words in files:
        for path in words:
            beside = Path(source).parent / path
            file = str(beside if beside.exists() else path)
            own = {**leaves(file, read_toml(FIELD, file)), **own}
    return torchtitan_file(source, own, program.devices.gpus, further)


CONFIG_FILE = "--job.config_file"
"""The option of torchtitan that names a file of settings."""

CHECKPOINTING = re.compile(r"activation[-_]checkpoint:([a-z-]+)")
"""A word of its command that chooses what is recomputed."""


def torchtitan_file(
    source: str, given: Mapping[str, Words], gpus: int | None, further: Iterable[Ignored] = ()
) -> LaunchFile:
    """The experiment of torchtitan's settings."""
    plain = {name.replace("-", "_"): words for name, words in given.items()}
    configured = CONFIGURATIONS.get(" ".join(plain.get("launch.config", ())), {})
    arguments = Arguments(source, plain, torchtitan.flags_with(configured))
    values = torchtitan.values_of(arguments, gpus)
    ignored = [*arguments.ignored(torchtitan.reason_of), *further]
    return launched("torchtitan", arguments, values, ignored)


def _recipe(name: str) -> LaunchFile:
    """A recipe of Megatron-Bridge: a function that fills a configuration, and is not run."""
    file, _, function = name.partition(RECIPE)
    config, lines = filled(f"{file}.py", function)
    given = arguments_of(name, flags_of(config))
    published = model_of_recipe(name, config)
    model = None if published is None else adjusted(given, published)
    values = values_of(given, function, gpus_of(function), model)
    if cluster := cluster_of(file, function):
        given.assume(f"cluster {cluster}, by the recipe's name", "cluster")
        values["cluster"] = cluster
    left_out = [Ignored(f"line {line}", text, True, NOT_PLAIN) for line, text in lines]
    ignored = [*given.ignored(reason_of), *sections_left_out(config), *left_out]
    return launched("Megatron-Bridge", given, values, ignored)


def _primus(path: str, module: Mapping[str, Any]) -> LaunchFile:
    """An experiment of Primus; its folder names the devices."""
    flags, called, left_out = flags_of_primus(path, module)
    given = arguments_of(path, flags, called)
    gpus = gpus_of_nodes(given)
    values = values_of(given, _name(path), gpus)
    given.assume(f"{gpus} GPUs, the fewest whole nodes of {GPUS_OF_NODE}", "dp", "gpus")
    if cluster := cluster_of(path, ""):
        given.assume(f"cluster {cluster}, by the file's folder", "cluster")
        values["cluster"] = cluster
    own = [
        each
        for each in given.ignored(reason_of)
        if each.name not in flags or each.name in given.read
    ]
    return launched("Primus", given, values, [*own, *left_out])


def megatron_file(
    source: str,
    given: Mapping[str, Words],
    gpus: int | None,
    further: Iterable[Ignored] = (),
    *,
    called: Mapping[str, str] = MappingProxyType({}),
    bert: bool = False,
) -> LaunchFile:
    """The experiment of Megatron-LM's flags, some of which are `called` otherwise in the file."""
    arguments = arguments_of(source, given, called)
    values = values_of(arguments, _name(source), gpus, bert=bert)
    return launched("Megatron-LM", arguments, values, [*arguments.ignored(reason_of), *further])


def launched(
    framework: str, given: Arguments, values: Mapping[str, Any], ignored: Iterable[Ignored]
) -> LaunchFile:
    """The launch file of arguments that are read; on the usual cluster, as none is named."""
    if "cluster" not in values:
        given.assume(f"cluster {CLUSTER}: launch files name none, --cluster does", "cluster")
    experiment = Experiment(values["schedule"]).changed(**{"cluster": CLUSTER, **values})
    understood = tuple(given.understood)
    return LaunchFile(
        given.source, framework, experiment, understood, tuple(ignored), given.assumed
    )


def _name(source: str) -> str:
    """The name of the model, after the file."""
    path = Path(source)
    named = path.parent.name if path.stem == "model_config" else path.stem
    return "own" if " " in named or not named else named


READERS: dict[tuple[str, ...], Callable[[str], LaunchFile]] = {
    SCRIPTS: _script,
    YAML: _yaml,
    (TOML,): _toml,
    (JSON,): _json,
}
"""Readers of launch files by their endings."""
