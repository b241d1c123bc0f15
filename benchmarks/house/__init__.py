"""How hard tests bite: faults put into the product, and damaged inputs."""
