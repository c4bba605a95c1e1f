"""Serve the site on the loopback address, as any static host would.

    python deploy/site/serve.py FOLDER [--port 8000]

In: the folder of a site. Out: its files over HTTP, until the program is ended.
"""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class SiteHandler(SimpleHTTPRequestHandler):
    """Files with the types that browsers insist on for modules and WebAssembly."""

    extensions_map = {  # noqa: RUF012  (the name and the kind of the standard library)
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def site_server(folder: str, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a folder on the loopback address; port 0 stands for a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(SiteHandler, directory=folder))


def main() -> None:
    """Serve until the program is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with site_server(given.folder, given.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
