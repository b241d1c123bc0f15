"""Examples in docstrings (`>>> ...`) as code, which Markdown takes for quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)


class Doctests(Extension):
    """Fences them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """The docstring of an object, as it is to be shown."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
