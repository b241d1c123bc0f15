"""Heartbeats, watchdog, and the diagnosis of a stuck rank."""
