"""Import profiles of PyTorch and Nsight Systems as timelines."""
