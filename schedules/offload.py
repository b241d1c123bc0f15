"""Which activations are offloaded to the host, in words and in numbers."""

from __future__ import annotations

from bfpp.schedules.invalid import InvalidConfiguration, did_you_mean

FIELD = "offload"

OFF: int = 0
ALL: int = 1
"""Passes that must run between a forward pass and its backward pass: 0 offloads nothing."""

SELECTIVE = "selective"
"""As many as take as long as a copy to the host and back."""

NAMED: dict[str, int | str] = {"off": OFF, "all": ALL, SELECTIVE: SELECTIVE}

MOST_DIGITS = 9
"""No rank runs more passes than this has digits."""


def require_share(share: float) -> None:
    """Raise `InvalidConfiguration` unless this is a share of a pass's activations."""
    if not 0 < share <= 1:
        raise InvalidConfiguration(
            "offload_share", f"must be more than 0 and at most 1, not {share:g}"
        )


def parse_offload(value: object) -> int | str:
    """A number of passes, or `selective`; raises `InvalidConfiguration` for anything else.

    >>> parse_offload("all"), parse_offload("4"), parse_offload("selective")
    (1, 4, 'selective')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = str(value).strip()
    if text in NAMED:
        return NAMED[text]
    if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS:
        return int(text)
    raise InvalidConfiguration(
        FIELD,
        f"{text!r} is not one of {', '.join(NAMED)}, or a number of passes"
        f"{did_you_mean(text, tuple(NAMED))}",
    )
