"""Exact order search by CP-SAT."""
