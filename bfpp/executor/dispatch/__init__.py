"""The dispatch loop: tasks of a graph on the lanes of a rank."""
