"""Stages on ranks, and layers in stages."""
