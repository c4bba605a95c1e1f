"""A review server on a port of its own, and clients of it over real TLS."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime

from dra_driver.base.telemetry.status_server import probe_pages
from dra_driver.tools.webhook.certificates import load_certificate_pair, make_certificate_pair
from dra_driver.tools.webhook.review import refuse_unread, review_configs
from dra_driver.tools.webhook.server import LIMITS, ReviewServer
from tests.tools.webhook.support.reviews import DRIVER, claim, review

NAME = "localhost"
PAIR = make_certificate_pair((NAME,), datetime.now(UTC))
EMPTY = json.dumps(review(claim())).encode()


def broken(_review, _deadline):
    raise RuntimeError("an internal error")


class Serving:
    """A server whose reviews at /endless end when their callers have gone, or when `released` is set."""

    def __init__(self, *, is_started=True, **limits):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate_pair(self.context, PAIR)
        self.reasons = ()
        self.metrics = b"reviews 1\n"
        self.begun, self.released = threading.Semaphore(0), threading.Event()
        self.answered = []
        self.server = ReviewServer(
            ("127.0.0.1", 0),
            self.context,
            reviewers={
                "/configs": lambda it, _deadline: review_configs(it, (DRIVER,)),
                "/broken": broken,
                "/endless": self.endless,
            },
            unread={"/configs": refuse_unread},
            pages=probe_pages(metrics=lambda: self.metrics, readiness=lambda: self.reasons),
            answered=lambda path, outcome: self.answered.append((path, outcome)),
            limits=replace(LIMITS, **limits),
        )
        if is_started:
            self.server.start()

    def endless(self, it, deadline):
        self.begun.release()
        while not self.released.is_set():
            deadline.check()
        return review_configs(it, (DRIVER,))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.released.set()
        self.server.stop()

    def connect(self, authorities=PAIR.authorities):
        trust = ssl.create_default_context(cadata=authorities)
        return http.client.HTTPSConnection(NAME, self.server.port, context=trust, timeout=60)

    def socket(self):
        """Return a TCP connection on which nothing has been sent."""
        return socket.create_connection((NAME, self.server.port), timeout=60)

    def begin_endless(self):
        """Return a connection on which a review is being worked on."""
        connection = self.connect()
        connection.request("POST", "/endless", EMPTY)
        assert self.begun.acquire(timeout=60)
        return connection


def ask(connection, path="/configs", body=EMPTY, method="POST"):
    connection.request(method, path, body if method == "POST" else None)
    answer = connection.getresponse()
    return answer.status, answer.read()


def is_closed(sock):
    """Return whether the other side closes a connection, which is waited for, without sending anything."""
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
