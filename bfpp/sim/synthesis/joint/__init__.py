"""Order search together with choices of recomputation and memory."""
