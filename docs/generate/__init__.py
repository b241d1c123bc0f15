"""What the site is built with: pages from the parsers, the docstrings and the tool's runs."""
