"""The plan that all ranks agree on before a run."""
