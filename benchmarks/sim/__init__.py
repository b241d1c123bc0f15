"""Engines, searches, order search, and how accurate predictions are."""
