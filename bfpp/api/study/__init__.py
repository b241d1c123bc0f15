"""Studies: grids of experiments that are predicted, run and compared."""
