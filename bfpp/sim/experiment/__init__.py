"""An experiment: its values, its prediction, intervals and sensitivities."""
