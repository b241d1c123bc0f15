"""The explorer: a page on which steps are chosen, served, or as files that need no server."""
