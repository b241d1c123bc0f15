"""A job of many steps explained: printed, as JSON, and as a page."""
