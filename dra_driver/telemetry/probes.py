"""Probe pages: the answers to /healthz, /readyz and /metrics, for any server that has these pages.

In: the metrics, and the reasons for not being ready. Out: a `PageResponse` for each path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_driver.telemetry.status_connection import PageResponse

# Pages that never wait for anything.
QUICK_PAGES: Mapping[str, PageResponse] = {"/healthz": PageResponse(200, b"ok\n")}
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def probe_pages(
    *, metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]
) -> Mapping[str, Callable[[], PageResponse]]:
    """Return the pages that are made on request. The agent is ready if `readiness` returns no reasons."""

    def ready() -> PageResponse:
        reasons = readiness()
        return PageResponse(503 if reasons else 200, ("\n".join(reasons) or "ok").encode() + b"\n")

    return {"/readyz": ready, "/metrics": lambda: PageResponse(200, metrics(), _METRICS)}
