"""SVG figures: schedules, placements, charts."""
