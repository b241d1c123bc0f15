"""Run a task graph on real devices. The only home of torch."""
