"""Start the processes of a run, or join those that torchrun started."""
