"""The formats of the files that commands write: how their names end, and how ours are known.

Every format but a table of measurements has a mark, which its writer puts near the
beginning of the file (of Parquet and PDF, near its end). It distinguishes files that may be
overwritten from those that somebody else wrote.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from bfpp.schedules.reading import COMPRESSED

READ = 4096
"""Bytes that are searched for a mark."""


@dataclass(frozen=True)
class FileFormat:
    """A format: its name, its suffixes (any if empty), and its marks in our files.

    `needs` is the package that writes it, and the extra of bfpp that installs this one.
    """

    title: str
    suffixes: tuple[str, ...]
    is_ours: Callable[[Path], bool]
    needs: tuple[str, str] | None = None


def _begins_with(mark: bytes, within: int, path: Path) -> bool:
    """True if the mark is `within` the first bytes of a file, compressed or not."""
    with path.open("rb") as raw:
        beginning = raw.read(within)
        if not beginning.startswith(COMPRESSED):
            return mark in beginning
        raw.seek(0)
        try:
            return mark in gzip.GzipFile(fileobj=raw).read(within)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return False


def _ends_with(mark: bytes, path: Path) -> bool:
    """True if the mark is near the end of a file, where Parquet and PDF keep metadata."""
    return mark in _end_of(path, 16 * READ)


def _end_of(path: Path, within: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - within, 0))
        return file.read()


def _marked(title: str, suffixes: tuple[str, ...], mark: bytes, within: int = READ) -> FileFormat:
    return FileFormat(title, suffixes, partial(_begins_with, mark, within))


def _with_format(title: str, suffixes: tuple[str, ...], name: str) -> FileFormat:
    """A format of JSON whose first key is its name, outermost."""
    mark = f'{{"format": "bfpp {name} '.encode()
    return _marked(title, suffixes, mark, len(mark))


def _are_orders(path: Path) -> bool:
    """True if a file of orders is of `bfpp schedule`, or ends as those of `bfpp orders`."""
    of_schedule = _begins_with(b"# made by bfpp schedule", READ, path)
    return of_schedule or _end_of(path, len(END_OF_ORDERS)) == END_OF_ORDERS


def _is_the_papers(path: Path) -> bool:
    return path.read_bytes() == (files("bfpp.paper") / "measurements.csv").read_bytes()


JSON = (".json", ".json.gz")
HTML = _marked("page", (".html", ".htm"), b'<meta name="generator" content="bfpp">')
SVG = _marked("figure", (".svg",), b"<!-- generator: bfpp -->")
PDF_MARK, PNG_MARK = b"% generator: bfpp", b"Software\0bfpp"
PDF = FileFormat("figure", (".pdf",), partial(_ends_with, PDF_MARK), ("cairosvg", "print"))
PNG = FileFormat("figure", (".png",), partial(_begins_with, PNG_MARK, READ), ("cairosvg", "print"))
PERFETTO = _marked("trace", JSON, b'"generator": "bfpp"')
KINETO = _marked("trace", (".json",), b'"generator": "bfpp"')
CHAKRA = _marked("trace", (".et",), b"bfpp.source")
TIMELINE = _with_format("timeline", JSON, "timeline")
OPERATIONS = _with_format("table of operations", JSON, "operations")
SAFETENSORS = _marked("file of weights", (".safetensors",), b'"generator":"bfpp"')
DISTRIBUTED_MARK = b"\n# generator: bfpp\n"
"""The end of our files of torch.distributed.checkpoint, which readers leave alone."""
METADATA, DISTRIBUTED = (
    FileFormat(
        f"{what} of torch.distributed.checkpoint", ends, partial(_ends_with, DISTRIBUTED_MARK)
    )
    for what, ends in (("metadata", ()), ("file", (".distcp",)))
)
CONFIG = _marked("config.json", (".json",), b'"exported_by": "bfpp"')
GRAPH = _with_format("task graph", (".json",), "task graph")
PROFILE = _marked("profile of a machine", (".toml",), b'format = "bfpp machine profile ')
CLUSTER = _marked("cluster", (".toml",), b'format = "bfpp cluster ')
CONSTANTS = _marked("file of constants", (".toml",), b'format = "bfpp constants ')
EXPERIMENT = _marked("experiment", (".toml",), b'format = "bfpp experiment ')
SEARCH = _marked("search", (".toml",), b'format = "bfpp search ')
END_OF_ORDERS = b" \n"
"""PyTorch takes no remarks in a file of orders, but a space at the end of a line."""
ORDERS = FileFormat("file of orders", (".csv",), _are_orders)
JOURNAL = _with_format("journal of a search", (), "search journal")
STUDY_JOURNAL = _with_format("journal of a study", (".jsonl",), "study journal")
STUDY_TABLE = _marked("table of a study", (".csv",), b"network,")
JOB = _marked("job of a study", (".sh", ".sbatch", ".yaml", ".yml"), b"# bfpp-study: ")
METRICS = _marked("file of metrics", (), b'{"event": "begin", "run": "')
FOUND_CSV = _marked("table of a search", (".csv",), b"schedule,pp,loops,")
FOUND_PARQUET = FileFormat(
    "table of a search", (".parquet",), partial(_ends_with, b"bfpp search"), ("pyarrow", "search")
)
MARKDOWN = _marked("table", (".md",), b"<!-- generator: bfpp -->")
PAPER_JSON = _marked("table", (".json",), b'"generator": "bfpp"')
MEASUREMENTS = FileFormat("table of the paper's measurements", (".csv",), _is_the_papers)
