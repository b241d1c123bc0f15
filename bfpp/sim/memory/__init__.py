"""Memory of a rank: training state, activations, memory over time."""
