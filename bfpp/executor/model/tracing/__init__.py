"""Layers run once on shapes alone: parameters, outputs, state that passes change."""
