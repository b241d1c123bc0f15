"""The timeline of a step, its metrics and memory curves."""
