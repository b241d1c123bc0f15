"""`bfpp show`: a saved timeline, simulated or measured."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bfpp import options as shared
from bfpp.errors import one_line
from bfpp.exports import add_export_arguments, write_exports
from bfpp.pictures import add_picture_arguments, write_pictures
from bfpp.results import Result, print_json
from bfpp.saved import add_timeline_argument, load
from bfpp.tables import print_idle, print_result
from traces.causes import Cause, Causes


@dataclass(frozen=True)
class Saved(Result):
    """A timeline from a file, with what its writer says of it and what its ranks wait for."""

    @cached_property
    def idle(self) -> list[dict[Cause, float]]:
        """For each rank, its idle seconds by cause."""
        return Causes(self.timeline).idle

    @cached_property
    def record(self) -> dict[str, Any]:
        """The result as a JSON object; times in seconds."""
        told = super().record
        ranks = [
            {**rank, "causes": causes}
            for rank, causes in zip(told["ranks"], self.idle, strict=True)
        ]
        return {**told, "ranks": ranks}

    def further_highlights(self) -> list[tuple[str, str]]:
        """The source, and what its writer says."""
        about = self.timeline.about.items()
        told = [
            (one_line(name.replace("_", " ")), one_line(_in_words(value))) for name, value in about
        ]
        return [("source", one_line(self.timeline.source)), *told]


def _in_words(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp show`."""
    add_timeline_argument(parser, "file", "FILE")
    add_picture_arguments(parser)
    add_export_arguments(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Report, and draw."""
    shared.refuse_text_beside_json(options)
    result = Saved(load(options.file, "FILE"))
    write_pictures(options, [result], result.title)
    write_exports(options, result.timeline)
    if options.json:
        print_json(result.record)
    else:
        print_result(result)
        print_idle(result.idle)
    return 0
