"""Launch files as settings by name: shell scripts, YAML, TOML and Python that is never run."""
