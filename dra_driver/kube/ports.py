"""Ports: the few requests that some rooms make of the Kubernetes API. `KubeApi` implements them, and so can a test."""

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
