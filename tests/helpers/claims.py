"""The paper's methods, and the numbers in a claim."""

from __future__ import annotations

import re

OURS, ALONE, DEPTH, OTHER = "Breadth-first", "No pipeline", "Depth-first", "Non-looped"


def numbers(text: str) -> list[float]:
    """All numbers in a sentence, in order."""
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]
