"""A real Prometheus on a free port, over a folder of blocks; it scrapes nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path


class PrometheusServer:
    """A Prometheus over the blocks in `folder`/data."""

    def __init__(self, program: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text("global: {}\n")
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

    def ask(self, expression: str, at: int) -> list[dict]:
        query = urllib.parse.urlencode({"query": expression, "time": at})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
