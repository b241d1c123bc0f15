"""The task graph: columns of tasks, lanes and dependencies."""
