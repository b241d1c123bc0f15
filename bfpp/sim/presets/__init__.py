"""Shipped models, clusters and software profiles, and their reader."""
