"""Values of an experiment: each by its name, how it is given, and its default.

Options, experiment files, rows of measured tables and search results name the same values.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from bfpp.sim.experiment.values.option import MEASURED, Option, option
from bfpp.sim.experiment.values.uneven import UnevenValues

if TYPE_CHECKING:  # loaded where a profile is read, so that abstract costs are there soon
    from bfpp.sim.costs.measured.profile import ProfiledCosts

ALIASES = {"virtual_stages": "loops", "vpp": "loops", "stages_per_rank": "units_per_stage"}
"""Other names of values."""


@dataclass(frozen=True)
class Values(UnevenValues):
    """A schedule, and all values of an experiment on it."""

    _: KW_ONLY
    profile: ProfiledCosts | str | None = option(
        None,
        MEASURED,
        "name",
        "profile of a machine from bfpp calibrate, preferably measured with as many ranks",
        "FILE",
    )


def _options() -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(Values) if "option" in each.metadata}


OPTIONS: dict[str, Option] = {name: each.metadata["option"] for name, each in _options().items()}
"""Every value other than the schedule, as it is given."""

DEFAULTS: dict[str, Any] = {name: each.default for name, each in _options().items()}


def of_group(*groups: str) -> list[str]:
    """The names of the values of these groups."""
    return [name for name, option in OPTIONS.items() if option.group in groups]
