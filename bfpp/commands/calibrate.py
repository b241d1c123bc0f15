"""`bfpp calibrate`: measure on this machine what the simulator needs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from bfpp.api.running.jobs import about, checked_plan, fail, job_of, require_torch
from bfpp.executor.settings import Optimization
from bfpp.options import shared
from bfpp.options.running.measuring import progress
from bfpp.options.running.run import (
    add_device_arguments,
    add_model_arguments,
    add_process_arguments,
    limits_of,
)
from bfpp.options.running.settings import device_settings, named_optimizer, with_file_values
from bfpp.options.running.trained_model import source_of
from bfpp.options.running.training import add_optimizer_argument
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.costs.measured.profile import PASSES
from bfpp.sim.costs.measured.profile_file import as_toml
from bfpp.sim.experiment.experiment import Experiment
from bfpp.terminal.formats import PROFILE
from bfpp.terminal.number_types import whole_number
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.timeline.units import in_words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp calibrate`."""
    parser.add_argument(
        "--pp",
        type=whole_number,
        default=2,
        metavar="N",
        help="ranks that compute and transfer concurrently: as many as will train (default: 2)",
    )
    add_model_arguments(parser)
    add_device_arguments(parser)
    add_process_arguments(parser)
    add_optimizer_argument(parser)
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and repetitions: faster, less accurate"
    )
    add_output(parser, "--out", [PROFILE], "write the profile, in TOML", required=True)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write."""
    if (options.tp or 1) > 1:
        raise InvalidConfiguration("tp", "only whole layers can be measured")
    require_torch()
    from bfpp.executor.model.sources import ties

    experiment = Experiment("breadth-first", pp=options.pp, microbatches=1, dp=options.dp or 1)
    name, arguments = named_optimizer(options.optimizer)
    job = job_of(
        experiment,
        source_of(options),
        steps=1,
        optimization=Optimization(optimizer=name, arguments=arguments),
        **device_settings(with_file_values(options)),
    )
    if ties(job.model):
        raise InvalidConfiguration(
            "model",
            f"{options.model} has tied embeddings, which a profile does not price: a model file "
            "with tied_embeddings = false can be measured (bfpp models NAME writes one)",
        )
    from bfpp.executor.measure.passes import QUICK, CalibrationWork, Effort, calibrate
    from bfpp.executor.processes import RunFailed, launch, prepare

    prepare(options.interface)
    checked_plan(job)
    with progress(options) as report:
        try:
            work = CalibrationWork(job, QUICK if options.quick else Effort())
            limits = limits_of(options)
            measured = launch(
                calibrate,
                work,
                job.processes,
                limits,
                lambda message: report(message.get("what", "")),
                options.interface,
            )
        except RunFailed as error:
            return fail("calibrate", error)
    if measured is None:  # a process of torchrun's that is not the first
        return 0
    record = {"about": {**about(job), "optimizer": options.optimizer}, **measured}
    if options.json:
        print_json(record)
    else:
        _print(record)
    with options.out.written() as path:
        path.write_text(as_toml(record), encoding="utf-8")
    return 0


def _print(record: Mapping[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            f"{layer['count']} of",
            *(in_words(layer[name]) for name in PASSES),
            f"{layer['parameters']:,}",
            f"{layer['bytes']:,}",
        )
        for layer in record["layers"]
    ]
    passes = record["passes"]
    outside = (in_words(passes[name]) for name in PASSES)
    rows.append(("outside the layers", *outside, "", ""))
    print_table(
        "Layers",
        ("", *(name.replace("backward_", "") for name in PASSES), "parameters", "bytes on"),
        rows,
    )
    rows = [
        (
            f"{channel['sender']} to {channel['receiver']}",
            in_words(channel["latency"]),
            f"{channel['bandwidth'] / 1e9:.3g} GB/s",
        )
        for channel in record["channels"]
    ]
    hosts = record.get("hosts", [])
    if rows:
        ends = "hosts" if hosts else "ranks"
        print_table("Transfers", (ends, "latency", "bandwidth"), rows)
    if hosts:
        rows = [
            (str(number), *(f"{host[way] / 1e9:.3g} GB/s" for way in ("out", "into")))
            for number, host in enumerate(hosts)
        ]
        print_table("Hosts, with all others at the same time", ("", "out", "into"), rows)
    rows = [
        (name, in_words(line["fixed"]), in_words(1e6 * line["per_parameter"]))
        for name, line in record["data"].items()
    ]
    print_table("By parameters", ("", "fixed", "a million"), rows)
    if muon := record.get("muon"):
        _print_by_layer("Matrices of Muon", muon)
    if launching := record.get("launching"):
        _print_by_layer("The host, to launch a pass", {name: launching[name] for name in PASSES})
    rows = [
        ("the next task, same stream", in_words(record["dispatch"]["next"])),
        ("a task that waits for another stream", in_words(record["dispatch"]["wake"])),
        (
            "to post an end of a transfer, on the passes' stream",
            in_words(record["dispatch"]["post"]),
        ),
    ]
    print_table("Dispatch", ("", ""), rows)


def _print_by_layer(title: str, table: Mapping[str, Any]) -> None:
    rows = [
        (name, in_words(each["fixed"]), in_words(max(each["layers"])))
        for name, each in table.items()
    ]
    print_table(title, ("", "fixed", "a layer, at most"), rows)
