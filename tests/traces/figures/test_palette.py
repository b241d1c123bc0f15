"""The colours of operations: kept apart by the colour-blind, and read in every contrast.

Colour vision deficiencies are simulated by the matrices of Machado, Oliveira and Fernandes (IEEE
TVCG 2009, severity 1), differences are Euclidean in CIELAB, contrasts are those of WCAG 2.2.
"""

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

from bfpp.schedules import Operation
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.traces.figures.appearance import fill, ink, luminance
from tests.helpers import ROOT

PAGE = ROOT / "bfpp" / "traces" / "page"
SIMULATED = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}  # fmt: skip
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
IN_ONE_ROW = [
    (Operation.FORWARD, Operation.BACKWARD, Operation.BACKWARD_WEIGHT, Operation.OPTIMIZER),
    (Operation.GATHER, Operation.REDUCE),
    (Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS),
]
APART = 15.0
"""Differences in CIELAB of which 2.3 is just noticed."""


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: str) -> np.ndarray:
    seen = np.clip(np.array(SIMULATED[sight]) @ linear(colour), 0, 1)
    share = np.array(XYZ) @ seen / [0.9505, 1.0, 1.089]
    root = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted(map(luminance, (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("sight", SIMULATED)
def test_operations_of_a_row_are_told_apart(sight: str) -> None:
    for operations in IN_ONE_ROW:
        for one, other in combinations(operations, 2):
            for shade, shade_of_other in product(range(8), repeat=2):
                colours = fill(one, shade, 8), fill(other, shade_of_other, 8)
                difference = np.linalg.norm(lab(colours[0], sight) - lab(colours[1], sight))
                assert difference > APART, (one.title, other.title, colours, difference)


def test_labels_are_read_on_every_colour() -> None:
    for operation, shade in product(OPERATIONS, range(48)):
        colour = fill(operation, shade, 48)
        assert contrast(ink(colour), colour) >= 4.5, (operation.title, colour)


def themes() -> dict[str, dict[str, str]]:
    """The colours of the page by name, light and dark."""
    text = (PAGE / "look.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", text, re.S)
    )
    return {"light": light, "dark": light | dark}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_are_read_in_light_and_dark(theme: str) -> None:
    colours = themes()[theme]
    for words, ground in product(("ink", "quiet", "wait"), ("paper", "raised", "idle")):
        assert contrast(colours[words], colours[ground]) >= 4.5, (words, ground)
    for part in ("edge", "accent", "memory"):  # what is no text
        assert contrast(colours[part], colours["paper"]) >= 3, part
