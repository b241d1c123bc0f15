"""Settings of a launch file that a prediction leaves out, or takes for others: words and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bfpp.launchers.recognise import is_launch_file

if TYPE_CHECKING:  # loaded where there is a launch file, so that other commands start soon
    from bfpp.launchers.arguments import Ignored
    from bfpp.launchers.launch_file import LaunchFile


def launch_of(schedule: str | None, given: Collection[str]) -> LaunchFile | None:
    """The launch file that SCHEDULE is, if it is one, with what it assumes beside these options."""
    if schedule is None or not is_launch_file(schedule):
        return None
    from bfpp.launchers.launch_file import read_launch_file

    launch = read_launch_file(schedule)
    assumed = {
        sentence: instead
        for sentence, instead in launch.assumed.items()
        if not {*instead} & {*given}
    }
    return launch._replace(assumed=assumed)


def launch_record(launch: LaunchFile | None) -> dict[str, Any]:
    """Keys of JSON: settings that are understood, and the others, if they matter and why."""
    if launch is None:
        return {}
    return {
        "understood": list(launch.understood),
        "ignored": [each._asdict() for each in launch.ignored],
    }


def launch_lines(launch: LaunchFile) -> Iterator[str]:
    """The same in lines, with the assumptions."""
    settings = "setting" if len(launch.understood) == 1 else "settings"
    yield f"{launch.source}, of {launch.framework}: {len(launch.understood)} {settings} understood"
    if launch.assumed:
        yield f"assumed: {'; '.join(launch.assumed)}"
    for title, matters in (("may matter", True), ("without effect on a step", False)):
        if left_out := [each for each in launch.ignored if each.matters is matters]:
            yield f"{title}: {'; '.join(_by_reason(left_out))}"


def _by_reason(ignored: Iterable[Ignored]) -> Iterator[str]:
    """The names that share a reason, and the reason."""
    names: dict[str, list[str]] = {}
    for each in ignored:
        names.setdefault(each.reason, []).append(each.name)
    for reason, alike in names.items():
        yield f"{', '.join(dict.fromkeys(alike))} ({reason})"


def report_left_out(command: str | None, schedule: str | None, given: Collection[str]) -> None:
    """Say on standard error which settings of a launch file may matter and are left out.

    `bfpp simulate` prints all of them.
    """
    if command == "simulate" or (launch := launch_of(schedule, given)) is None:
        return
    from bfpp.terminal.printing import note

    names = [each.name for each in launch.ignored if each.matters]
    said = [f"left out or taken otherwise: {', '.join(names)}"] if names else []
    said += [f"assumed {'; '.join(launch.assumed)}"] if launch.assumed else []
    if said:
        note(f"bfpp {command}: {launch.source}: {'; '.join(said)}")
