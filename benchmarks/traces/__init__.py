"""Metrics of timelines, and how fast their page is drawn."""
