"""Compiled loops of the order search."""
