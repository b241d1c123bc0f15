"""Compute orders of ranks: steps, posts of transfers, and whether an order is valid."""
