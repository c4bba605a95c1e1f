"""API port: the one function of the Kubernetes API that the embedded kubelet, scheduler and controllers use.

Implemented by `kube.api.KubeApi` (over HTTP) and by `EmbeddedApi` (in this process).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dra_driver.model.wire import Wire


class Api(Protocol):
    """The one function of the Kubernetes API that the embedded parts use."""

    def request(
        self, method: str, path: str, *, body: Wire | None = None, query: Mapping[str, str] | None = None
    ) -> Wire:
        """Send a request and return the decoded answer.

        Raises: ApiError if the answer is no success, or if there is none.
        """
