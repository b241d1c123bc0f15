"""Notebooks, kept as Python files with cells (`# %%`), run and turned into pages."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parents[1] / "notebooks"


def run(source: Path) -> tuple[str, str]:
    """A notebook's page in Markdown, and the notebook itself with its results."""
    import jupytext
    import nbformat
    from jupyter_client.manager import AsyncKernelManager as KernelManager
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook = jupytext.read(source)
    with TemporaryDirectory() as folder:
        # By files: a kernel on TCP could be asked by others on this machine.
        kernel = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        NotebookClient(notebook, km=kernel, resources={"metadata": {"path": folder}}).execute()
    page, _ = MarkdownExporter(exclude_input_prompt=True).from_notebook_node(notebook)
    return page, nbformat.writes(notebook)
