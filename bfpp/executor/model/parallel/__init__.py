"""Tensor-parallel and context-parallel layers."""
