"""Backends: workers in one process, or over torch.distributed."""
