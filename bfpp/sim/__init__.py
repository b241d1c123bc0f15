"""Time and memory of a step: costs, links, engines, search."""
