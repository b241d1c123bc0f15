"""Flags of Megatron-LM and settings of torchtitan for an experiment."""
