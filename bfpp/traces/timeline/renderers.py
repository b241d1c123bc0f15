"""Renderers of a timeline, by name: a registry that the rooms above fill.

`bfpp.traces` registers its own when it is imported, and they load what they draw with when a
notebook asks for it. So `Timeline` shows itself without an import of the figures above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOTEBOOK, FIGURE = "notebook", "figure"
"""Names: SVG text for a notebook's cell, and a plotly figure."""

RENDERERS: dict[str, Callable[[Any], Any]] = {}
"""Functions of a timeline."""
