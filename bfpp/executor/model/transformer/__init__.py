"""Transformers, with weights of Hugging Face checkpoints."""
