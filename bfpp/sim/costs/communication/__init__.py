"""Prices of collectives, P2P transfers and copies to the host."""
