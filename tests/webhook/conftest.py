"""Servers that end at once: by default, a server that is asked to stop checks for that only twice a second."""

import socketserver

import pytest


@pytest.fixture(autouse=True)
def _servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))
