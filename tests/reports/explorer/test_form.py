"""The explorer's form: each field, what it can be, what it begins with, and what it then means."""

from __future__ import annotations

from typing import Any

import pytest

from bfpp.reports.explorer.answers import answer
from bfpp.reports.explorer.choices import chosen, defaults, groups
from bfpp.schedules import InvalidConfiguration, registered_schedules
from bfpp.sim.presets.files import preset_names

ABSTRACT = "Abstract costs, in seconds"
# fmt: off
FORM = {  # title of a group: is it open; by field its kind, its opening value, and its slider
    "Model and cluster": (True, {
        "model": ("text", "llama3-70b"), "cluster": ("text", "dgx-h100"),
        "implementation": ("text", ""), "precision": ("text", ""),
    }),
    "Schedule": (True, {
        "schedule": ("text", "depth-first"), "beside": ("text", "1f1b"),
        "pp": ("count", "4", 1, 32, 1), "loops": ("count", "4", 1, 8, 1),
        "microbatches": ("count", "16", 1, 64, 1),
    }),
    "Parallelism and memory": (True, {
        "tp": ("count", "8", 1, 16, 1), "dp": ("count", "4", 1, 64, 1),
        "microbatch_size": ("count", "1", 1, 16, 1), "recompute": ("text", ""),
        "attention": ("text", ""),
    }),
    ABSTRACT: (True, {
        "forward": ("seconds", "1", 0, 4, 0.05), "backward": ("seconds", "2", 0, 4, 0.05),
        "transfer": ("seconds", "0.1", 0, 4, 0.05), "gather": ("seconds", "0", 0, 4, 0.05),
        "reduce": ("seconds", "0", 0, 4, 0.05), "optimizer": ("seconds", "0", 0, 4, 0.05),
    }),
    "Communication": (False, {
        "sharding": ("text", "zero1"), "pp_overlap": ("flag", "true"),
        "dp_overlap": ("flag", "true"), "gather_per": ("text", "run"),
        "reduce_per": ("text", "run"), "p2p": ("text", "channels"),
    }),
    "Your own orders": (False, {"orders": ("orders", "")}),
}
LISTED = {
    "schedule": [*registered_schedules()], "beside": ["", *registered_schedules()],
    "model": preset_names("model"), "cluster": preset_names("cluster"),
    "gather_per": ["run", "step"], "reduce_per": ["run", "step"],
    "attention": ["", "fused", "unfused"],
}
FIRST = {  # where more may come to be known
    "sharding": ["none", "partial", "full"], "p2p": ["channels", "fifo", "deferred"],
    "implementation": ["", "paper", "megatron"],
}
# fmt: on


def test_the_form() -> None:
    found: dict[str, Any] = {}
    for group in groups():
        fields = {
            field["name"]: (
                field["kind"],
                defaults()[field["name"]],
                *(field[name] for name in ("least", "most", "step") if name in field),
            )
            for field in group["fields"]
        }
        found[group["title"]] = group["open"], fields
    assert found == FORM
    assert [*defaults()] == ["costs", *(name for _, fields in FORM.values() for name in fields)]
    assert defaults()["costs"] == "model"


def test_what_can_be_chosen() -> None:
    fields = {field["name"]: field for group in groups() for field in group["fields"]}
    listed = {name: field["choices"] for name, field in fields.items() if "choices" in field}
    assert {name: listed[name] for name in LISTED} == LISTED
    assert {name: listed[name][:3] for name in FIRST} == FIRST
    assert listed.keys() == LISTED.keys() | FIRST.keys()
    costs = {name: field.get("costs") for name, field in fields.items()}
    for title, (_, names) in FORM.items():
        of_model = dict.fromkeys(("Model and cluster", "Parallelism and memory"), "model")
        assert {costs[name] for name in names} == {({ABSTRACT: "abstract"} | of_model).get(title)}
    for name, field in fields.items():
        assert field["help"], name
        assert field["title"], name


# fmt: off
OPENING = (
    "--model llama3-70b --cluster dgx-h100 --pp 4 --loops 4 --microbatches 16 --tp 8 --dp 4 "
    "--sharding zero1"
)
CHANGED = "--sharding zero1 --no-pp-overlap --gather-per step"
COMMANDS = [  # choices, and the command that means the same, less what it begins with
    ({}, f"depth-first 1f1b {OPENING}"),
    ({"costs": "abstract"},
     "depth-first 1f1b --pp 4 --loops 4 --microbatches 16 --transfer 0.1 --sharding zero1"),
    ({"costs": "abstract", "beside": "", "transfer": "0", "forward": "1.5", "sharding": "none"},
     "depth-first --pp 4 --loops 4 --microbatches 16 --forward 1.5"),
    ({"costs": "abstract", "schedule": "gpipe", "loops": "", "pp_overlap": "false",
      "gather_per": "step"},
     f"gpipe 1f1b --pp 4 --microbatches 16 --transfer 0.1 {CHANGED}"),
    ({"costs": "abstract", "pp": " 2 ", "sharding": "full", "tp": "2", "precision": "bf16"},
     "depth-first 1f1b --pp 2 --loops 4 --microbatches 16 --transfer 0.1 --sharding full"),
    ({"model": "bert-6.6b", "cluster": "dgx1-v100", "tp": "2", "dp": "1", "beside": "",
      "schedule": "1f1b", "loops": "1", "sharding": "none", "forward": "3"},
     "1f1b --model bert-6.6b --cluster dgx1-v100 --pp 4 --loops 1 --microbatches 16 --tp 2"),
]
WRONG = [
    ({"schedule": ""}, "schedule"), ({"schedule": "none-such"}, "schedule"),
    ({"beside": "none-such"}, "beside"), ({"model": "none-such"}, "model"),
    ({"cluster": "my.toml"}, "cluster"), ({"profile": "my.toml"}, "profile"), ({"pp": "0"}, "pp"),
    ({"pp": 2}, "pp"), ({"costs": "abstract", "forward": "-1"}, "forward"),
    ({"pp_overlap": "maybe"}, "pp_overlap"), ({"loops": "eat"}, "loops"),
    ({"costs": "no"}, "costs"), ({"model": ""}, "model"), ({"cluster": ""}, "cluster"),
]
# fmt: on


@pytest.mark.parametrize(("choices", "command"), COMMANDS)
def test_choices_mean_a_command(choices: dict[str, str], command: str) -> None:
    found = chosen(choices)
    assert found.command == f"bfpp compare {command}"
    said = command.split(" --", maxsplit=1)[0].split()
    assert [each.rule.name for each in found.experiments] == said


@pytest.mark.parametrize(("choices", "field"), WRONG)
def test_a_wrong_choice_is_named(choices: dict[str, Any], field: str) -> None:
    assert answer(choices)["wrong"]["field"] == field


def test_orders_decide_what_is_left_open() -> None:
    orders = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    [experiment] = chosen({"costs": "abstract", "orders": orders, "beside": ""}).experiments
    assert (experiment.pp, experiment.microbatches) == (2, 2)
    with pytest.raises(InvalidConfiguration):
        _ = [
            each.graph()
            for each in chosen({"costs": "abstract", "orders": orders, "pp": "3"}).experiments
        ]
