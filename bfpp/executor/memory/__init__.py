"""Memory of a rank: units, their shards, offloaded activations, bytes counted."""
