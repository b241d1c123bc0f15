"""Figures of a timeline: terminal, SVG, plotly."""
