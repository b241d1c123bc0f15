"""Names of launch files, and commands that start training: known without reading much of them."""

from __future__ import annotations

from bfpp.launchers.sources.command_words import is_command

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
YAML = (".yaml", ".yml")


def is_launch_file(name: str) -> bool:
    """True if SCHEDULE is a launch file, or a command that starts training."""
    return name.endswith((*SCRIPTS, *YAML)) or is_command(name)
