"""Files of orders and graphs: PyTorch CSV, PyTorch actions, JSON, Python."""
