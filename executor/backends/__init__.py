"""How workers reach one another: in one process, or over torch.distributed."""
