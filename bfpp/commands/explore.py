"""`bfpp explore`: choose schedules, sizes and costs in the browser, and see what follows."""

from __future__ import annotations

import argparse
import sys
from errno import errorcode

from bfpp.reports.explorer.server import USUAL_PORT, ExplorerServer
from bfpp.schedules import InvalidInput
from bfpp.terminal.formats import HTML
from bfpp.terminal.number_types import whole_number
from bfpp.terminal.outputs import add_force_argument, add_output_folder

MOST_PORTS = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp explore`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--port",
        type=whole_number,
        metavar="N",
        help=f"port to serve this machine's browser at (default: {USUAL_PORT}, or any free one)",
    )
    add_output_folder(
        group,
        "--out",
        None,
        "write the explorer to DIR/index.html instead, which needs no server: cases of models, "
        "predicted beforehand, and steps that the browser replays with any abstract costs",
    )
    add_force_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted, or write."""
    if options.out:
        from bfpp.reports.explorer.static import static_page

        page = options.out.inside("index.html", HTML)
        page.require_ours(options.force)
        text = static_page()
        sys.stdout.write("listed cases, any abstract costs: open index.html in a browser\n")
        with page.written() as path:
            path.write_text(text, encoding="utf-8")
        return 0
    if (options.port or 0) > MOST_PORTS:
        raise InvalidInput(f"--port: must be at most {MOST_PORTS}, not {options.port}")
    try:
        server = _at_usual_port() if options.port is None else ExplorerServer(options.port)
    except OSError as error:
        reason = error.strerror or errorcode.get(error.errno or 0, str(error))
        raise InvalidInput(f"--port: {options.port}: {reason}") from None
    with server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _at_usual_port() -> ExplorerServer:
    """A server where addresses from others lead, or at any free port."""
    try:
        return ExplorerServer(USUAL_PORT)
    except OSError:
        return ExplorerServer(0)
