"""A real Prometheus on a free port, over a folder of blocks; it scrapes what its configuration says."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


class PrometheusServer:
    """A Prometheus over the blocks in `folder`/data; without a configuration it scrapes nothing."""

    def __init__(self, program: Path, folder: Path, configuration: str = "global: {}\n") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(configuration)
        self.process = subprocess.Popen(
            [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             "--storage.tsdb.retention.time=100y", f"--web.listen-address={self.url.removeprefix('http://')}"],
            stderr=(folder / "log").open("w"),
        )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError((folder / "log").read_text())

    def ask(self, expression: str, at: float) -> list[dict]:
        return self._get(f"query?{urllib.parse.urlencode({'query': expression, 'time': at})}")["result"]

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return the values of a label on the series of a selector; "" is every series."""
        query = f"?{urllib.parse.urlencode({'match[]': selector})}" if selector else ""
        return self._get(f"label/{label}/values{query}")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
