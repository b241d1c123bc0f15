"""Hosts of a study: kinds of them, jobs that start processes there, network namespaces."""
