"""Megatron-LM: an experiment as flags, and flags as an experiment."""
