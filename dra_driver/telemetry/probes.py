"""Probe pages: the answers to /healthz, /readyz and /metrics, for any server that has these pages.

In: the parts that have to run, the metrics, and the reasons for not being ready. Out: a `PageResponse` for each path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.telemetry.part_thread import NEEDED

_HEALTH = "/healthz"


@dataclass(frozen=True, slots=True)
class PageResponse:
    """The answer of a page."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class _QuickPages(Mapping[str, PageResponse]):
    """The pages that never wait for anything, each as it is at the moment when it is taken."""

    def __getitem__(self, path: str) -> PageResponse:
        if path != _HEALTH:
            raise KeyError(path)
        return _page_of(NEEDED.faults())

    def __iter__(self) -> Iterator[str]:
        return iter((_HEALTH,))

    def __len__(self) -> int:
        return 1


def _page_of(reasons: tuple[str, ...]) -> PageResponse:
    return PageResponse(503 if reasons else 200, ("\n".join(reasons) or "ok").encode() + b"\n")


QUICK_PAGES = _QuickPages()
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def probe_pages(
    *, metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]
) -> Mapping[str, Callable[[], PageResponse]]:
    """Return the pages that are made on request. The agent is ready if `readiness` returns no reasons."""
    return {"/readyz": lambda: _page_of(readiness()), "/metrics": lambda: PageResponse(200, metrics(), _METRICS)}
