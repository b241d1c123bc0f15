"""Interactive page of timelines, in one HTML file."""
