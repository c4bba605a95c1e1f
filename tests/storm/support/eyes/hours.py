"""Hours: how long claims had devices, as the storm knows it, compared with what the node charges to each namespace.

Each claim has a shortest time (from the first answer of Prepare until Unprepare was sent) and a longest one (from the
first call that may have prepared it until Unprepare was answered). Shares are left out: rules change their weight.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tests.storm.support.node.cluster import Claim
from tests.storm.support.node.devices import SHARED, address_of

SLACK_S = 3.0  # for each namespace: what the last round of measurement may not have shown yet


@dataclass
class Span:
    """When a claim had its devices, by monotonic time."""

    may_begin: float = 0.0
    began: float = 0.0
    leaves: float = 0.0
    ended: float = 0.0


class Hours:
    """The spans of all claims. Any thread may call any method."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._spans: dict[str, Span] = defaultdict(Span)
        self._claims: dict[str, Claim] = {}

    def note(self, claim: Claim, what: str, at: float = 0.0) -> None:
        """Record a moment of a claim's life, unless it was noted before; the end counts again each time."""
        with self._mutex:
            span = self._spans[claim.uid]
            self._claims[claim.uid] = claim
            if what == "ended" or not getattr(span, what):
                setattr(span, what, at or time.monotonic())

    def wrong(self, shown: Mapping[str, float]) -> list[str]:
        """Return what is charged to a namespace although it had less, or not charged although it had more."""
        least: dict[str, float] = defaultdict(float)
        most: dict[str, float] = defaultdict(float)
        for uid, span in self._spans.items():
            claim = self._claims[uid]
            count = sum(not (claim.is_shared and address_of(device) == SHARED) for device in claim.devices)
            if span.began:
                least[claim.namespace] += count * max(0.0, span.leaves - span.began)
            if span.may_begin:
                most[claim.namespace] += count * (span.ended - span.may_begin)
        found = []
        for namespace in sorted({*least, *most, *shown}):
            charged = shown.get(namespace, 0.0)
            if not least[namespace] - SLACK_S <= charged <= most[namespace] + SLACK_S:
                bounds = f"{least[namespace]:.1f} to {most[namespace]:.1f}"
                found.append(f"{namespace} had devices for {bounds} s and is charged {charged:.1f} s")
        return found
