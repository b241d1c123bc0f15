"""Tests of the tests: faults put into the product, and damaged inputs."""
