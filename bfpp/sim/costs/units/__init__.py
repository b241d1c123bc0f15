"""Seconds and saved activations of a unit: an embedding, a layer, a head."""
