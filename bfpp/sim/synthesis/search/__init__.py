"""Local search of orders: annealing, building blocks."""
