"""Clusters: devices, network levels, placement of groups, NCCL, software profiles."""
