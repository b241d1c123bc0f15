"""What is asked of every timeline that is predicted, as a loop: as `Timeline` has it, sooner."""

from __future__ import annotations


def summed(start, end, is_pass):
    """The first start, the seconds from there to the last end, and those of all passes."""
    first, last, passes = start[0], end[0], 0.0
    for task in range(len(start)):
        first, last = min(first, start[task]), max(last, end[task])
        if is_pass[task]:
            passes += end[task] - start[task]
    return first, last - first, passes
