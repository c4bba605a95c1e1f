"""Ports: what rooms that ask little of the Kubernetes API ask; `KubeApi` answers, and so can a test's stand-in."""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.wire import ClaimWire, Wire


class NodeApi(Protocol):
    """Who reads nodes."""

    def get_node(self, name: str) -> Wire:
        """Return a Node. Raises: ApiError."""


class ClaimApi(Protocol):
    """Who reads claims."""

    def get_claim(self, namespace: str, name: str, *, timeout_s: float) -> ClaimWire:
        """Read one claim. Raises: ApiError."""
