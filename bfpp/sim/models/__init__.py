"""Transformer sizes, Hugging Face configurations, layers of units."""
