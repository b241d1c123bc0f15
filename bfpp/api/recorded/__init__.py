"""Reports on what was recorded: traces of devices, and jobs with stragglers."""
