"""`dra-driver console` as a process of its own, and a client that talks to it as a browser does."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.waiting import until


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def _in_time(send: Callable[[], Reply]) -> Reply:
    """Repeat a question for as long as the answer is that the machine was too busy to answer it in time."""
    replies: list[Reply] = []

    def is_answered() -> bool:
        replies.append(send())
        return b'"question.too-slow"' not in replies[-1].body

    until(is_answered, "an answer in time")
    return replies[-1]


@dataclass
class RunningConsole:
    address: str
    process: subprocess.Popen[str]
    cookie: str = ""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send one request with exactly these headers, underscores for dashes; Host is the console's unless given."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"host": f"127.0.0.1:{self.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        try:
            line.request(method, path, body, sent)
            reply = line.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            line.close()

    def enter(self) -> Reply:
        """Exchange the token for the cookie, as the browser that opens the address does."""
        reply = self.send("GET", urlsplit(self.address).path)
        self.cookie = reply.headers.get("set-cookie", "").partition(";")[0]
        return reply

    def ask(self, name: str, query: str = "") -> Reply:
        return _in_time(lambda: self.send("GET", f"/api/v1/{name}{query}", cookie=self.cookie))

    def post(self, name: str, question: Any) -> Reply:
        return _in_time(lambda: self.post_once(name, question))

    def post_once(self, name: str, question: Any) -> Reply:
        """Post a question once, also if the answer is that it takes too long."""
        body = json.dumps(question).encode()
        return self.send("POST", f"/api/v1/{name}", body, cookie=self.cookie, origin=self.origin)

    def ready(self) -> None:
        """Sign in, and wait until the fleet has been read."""
        self.enter()
        until(lambda: self.ask("summary").status == 200)

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Keep the stream of events open, as a page does: a cluster is read only while a page is open."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        line.request("GET", "/api/v1/events", headers={"host": f"127.0.0.1:{self.port}", "cookie": self.cookie})
        reply = line.getresponse()
        reader = threading.Thread(target=lambda: [None for _ in iter(reply.readline, b"")], daemon=True)
        reader.start()
        try:
            until(lambda: self.ask("summary").json["loading"] == [])
            yield
        finally:
            if line.sock is not None:
                line.sock.close()

    def end(self) -> int:
        """Interrupt the console as Ctrl-C does, and return its exit status."""
        self.process.send_signal(2)
        return self.process.wait(60)


@contextmanager
def running_console(*words: str, env: Mapping[str, str] | None = None) -> Iterator[RunningConsole]:
    """Start a console, and end it afterwards."""
    command = [sys.executable, "-m", "dra_driver", "console", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://\S+", first)
            assert found, f"the console printed {first!r} and ended with {process.poll()}"
            yield RunningConsole(found[0], process)
        finally:
            process.kill()
