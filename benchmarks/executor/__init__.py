"""Runs on this machine: dispatch, real steps beside predicted ones and PyTorch's, faults."""
