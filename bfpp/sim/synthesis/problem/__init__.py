"""The problem of an order search: objective, memory limits, placements."""
