"""Discrete-event engines: replay a task graph by a cost model."""
