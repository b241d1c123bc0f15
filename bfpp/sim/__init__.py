"""How long it takes: costs, ports, engines."""
