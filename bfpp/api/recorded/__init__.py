"""Reports on what was recorded: saved timelines, traces of devices, jobs with stragglers."""
