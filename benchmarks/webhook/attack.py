"""The webhook as a separate process, under everything that a client which reaches its port can send.

The peak of its memory, the largest answer, the time that it works for one review, and the time that ordinary reviews of
configs wait meanwhile are measured.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.figures import Report, percentiles
from benchmarks.webhook.process import NAME, Webhook, review_of, webhook
from dra_driver.base.names import NVIDIA_DRIVER

NODES = 20
ORDINARY = 300
LIMIT_MIB = 160.0  # of the 256 that the chart allows
_STALLED = 600
_MIB = 1 << 20
_HEAD = (
    '{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"kind":"ResourceClaim"},'
)


def run(report: Report) -> None:
    """Run every attack, one after the other."""
    with webhook(NODES) as running:
        running.wait_for_warning("none of the", review_of(f'device.driver == "{NVIDIA_DRIVER}" && false'))
        report.add("webhook attacked: memory before", running.mib("VmRSS"), "MiB")
        alone = _ordinary(running)
        report.add("webhook attacked: p99 of /configs before, new connections", alone, "ms")
        _answers(report, running)
        _expensive(report, running)
        for name, attack in (
            ("large bodies", _large),
            ("expensive selectors", _selectors),
            ("stalled connections", _stalled),
        ):
            with attack(running):
                report.add(f"webhook attacked: p99 of /configs under {name}", _ordinary(running), "ms", budget=1000.0)
            report.add(f"webhook attacked: peak of memory, {name}", running.mib("VmHWM"), "MiB", budget=LIMIT_MIB)


def _answers(report: Report, running: Webhook) -> None:
    """Report the size of the largest answer to a claim full of faults."""
    wrong = {"apiVersion": "x" * 5000, "kind": "GpuConfig", **{f"{number:04}" + "y" * 40: 1 for number in range(100)}}
    configs = [{"opaque": {"driver": NVIDIA_DRIVER, "parameters": wrong}}] * 32
    obj = {"metadata": {"name": "n"}, "spec": {"devices": {"config": configs}}}
    body = f'{_HEAD}"operation":"CREATE","object":{json.dumps(obj)}}}}}'.encode()
    answer = json.dumps(running.ask("/configs", body, 120))
    report.add("webhook attacked: largest answer", len(answer) / 1024, "KiB", budget=16)


def _expensive(report: Report, running: Webhook) -> None:
    """Measure what one review of 32 x 32 expensive selectors costs, whether or not the client waits for it."""
    body, began, worked = _hostile(32 * 32), time.perf_counter(), running.cpu_seconds()
    with contextlib.suppress(OSError, http.client.HTTPException):
        running.ask("/selectors", body, 60.0)
    report.add("webhook attacked: 32 x 32 expensive selectors", time.perf_counter() - began, "s", budget=1.5)
    report.add(
        "webhook attacked: 32 x 32 expensive selectors, work", running.cpu_seconds() - worked, "s CPU", budget=1.5
    )
    worked = running.cpu_seconds()
    with contextlib.suppress(OSError, http.client.HTTPException):
        running.ask("/selectors", _hostile(32 * 32), 0.2)
    time.sleep(3)
    report.add(
        "webhook attacked: the same, caller gone after 0.2 s", running.cpu_seconds() - worked, "s CPU", budget=0.6
    )


_numbers = itertools.count()


def _hostile(count: int) -> bytes:
    """Return a claim with selectors that the API server accepts, each new and seconds of work."""
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    fold = f"{ten}.all(a,{ten}.all(b,{ten}.all(c,{ten}.all(d,a+b+c+d>0))))"
    expressions = [f'device.driver == "{NVIDIA_DRIVER}" && {next(_numbers)} >= 0 && {fold}' for _ in range(count)]
    return review_of(*expressions)


def _ordinary(running: Webhook) -> float:
    """Send ordinary reviews of configs, each on its own connection; return p99 in milliseconds."""
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}
    devices = {"config": [{"opaque": {"driver": NVIDIA_DRIVER, "parameters": config}}]}
    obj = {"metadata": {"name": "n"}, "spec": {"devices": devices}}
    body = f'{_HEAD}"operation":"CREATE","object":{json.dumps(obj)}}}}}'.encode()
    times = []
    for _ in range(ORDINARY):
        began = time.perf_counter()
        if running.ask("/configs", body, 20).get("allowed") is not True:
            raise RuntimeError("an ordinary review was refused")
        times.append(time.perf_counter() - began)
    return percentiles(times)[2]


@contextmanager
def _many(count: int, work: Callable[[], object]) -> Iterator[None]:
    """Repeat an action in many threads for the duration of a block."""
    is_over = threading.Event()

    def again() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                work()

    threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)


def _large(running: Webhook) -> Any:
    """Return the attack with bodies of the largest accepted size that use the most memory as values or as texts."""
    room = 3 * _MIB - len(_HEAD) - 20
    bodies = itertools.cycle(
        f'{_HEAD}"x":{text}}}}}'.encode()
        for text in (
            "[" + "[]," * 199_000 + "1]",
            "[" + "{}," * 199_000 + '"' + "x" * (room - 597_100) + '"]',
            "[" + ",".join(f'"{number:08}"' for number in range(150_000)) + "]",
            '"' + "é" + "x" * (room - 20) + "😀" + '"',
            "[" * 100_000 + "]" * 100_000,
            "[" + "[]," * 900_000 + "1]",
        )
    )
    lock = threading.Lock()

    def work() -> None:
        with lock:
            body = next(bodies)
        running.ask("/configs", body, 20)

    return _many(6, work)


def _selectors(running: Webhook) -> Any:
    return _many(12, lambda: running.ask("/selectors", _hostile(8), 5))


@contextmanager
def _stalled(running: Webhook) -> Iterator[None]:
    """Open connections that stop half way: before the handshake, in a head, in a body of 3 MiB."""
    held: list[Any] = []
    for number in range(_STALLED):
        with contextlib.suppress(OSError):
            sock: Any = socket.create_connection(("127.0.0.1", running.port), timeout=5)
            held.append(sock)
            if number % 3:
                held[-1] = sock = running.trust.wrap_socket(sock, server_hostname=NAME)
                head = b"POST /configs HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 12_000
                body = f"\r\nContent-Length: {3 * _MIB}\r\n\r\n".encode() + b"[" * 64_000
                sock.sendall(head if number % 3 == 1 else head + body)
    try:
        yield
    finally:
        for sock in held:
            sock.close()
