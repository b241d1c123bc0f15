"""Operators of a layer: GEMMs, attention, experts; their FLOPs, bytes and saved tensors."""
