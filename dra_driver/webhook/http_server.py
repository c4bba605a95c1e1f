"""What uvicorn lacks and both of our servers need, the webhook's and the console's: an end, and the peer's certificate.

In: an application. Out: a uvicorn server that any thread may ask to end, and HTTP/1.1 connections that put the
certificate of the other side into the scope of each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_TICK_SECONDS = 1.0  # how often the date in answers is renewed; uvicorn itself wakes ten times as often


class HttpServer(uvicorn.Server):
    """A server that ends at once when it is asked to, by a signal or by a thread."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None  # until the loop runs

    async def main_loop(self) -> None:
        """Wait until the server is asked to end, waking only once a second to renew the date in answers."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, asked.set)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), _TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at once, not at the next tick."""
        super().handle_exit(sig, frame)
        self._wake()

    def ask_to_end(self) -> None:
        """End as after a signal. Any thread may call it."""
        self.should_exit = True
        self._wake()


class HttpConnection(H11Protocol):
    """HTTP/1.1 on a connection whose peer may have sent a certificate: `client_certificate` in the scope of requests.

    It is what `ssl` says of a certificate that it has verified; {} or None without one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wrap the application, for this connection alone."""
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        inner: ASGIApp = self.app

        async def certified(scope: Scope, receive: Receive, send: Send) -> None:
            scope["client_certificate"] = certificate
            await inner(scope, receive, send)

        self.app = certified

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; end the connection if its request has been answered already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()  # where uvicorn would raise an error


def configuration(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for one of our servers."""
    return uvicorn.Config(
        app,
        ws="none",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        **more,
    )
