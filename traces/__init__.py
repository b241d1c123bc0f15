"""What happened: timelines, their metrics, figures and file formats."""
