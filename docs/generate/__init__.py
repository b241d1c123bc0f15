"""Build of the site: pages from the parsers, the docstrings and the tool's runs."""
