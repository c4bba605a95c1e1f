"""Ports: the few methods of the Kubernetes API that single rooms need. `KubeApi` implements them, and so can a test."""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.wire import ClaimWire, Wire


class NodeApi(Protocol):
    """The part of the API that reads nodes."""

    def get_node(self, name: str) -> Wire:
        """Return a Node. Raises: ApiError."""


class ClaimApi(Protocol):
    """The part of the API that reads claims."""

    def get_claim(self, namespace: str, name: str, *, timeout_s: float) -> ClaimWire:
        """Read one claim. Raises: ApiError."""
