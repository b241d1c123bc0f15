"""Loops of the search for an order of passes."""
