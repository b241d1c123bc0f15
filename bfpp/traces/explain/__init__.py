"""Explain a timeline: causes of idle time, difference of two timelines."""
