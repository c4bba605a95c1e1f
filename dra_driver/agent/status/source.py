"""The source of the status page: the interface by which an agent supplies it."""

from __future__ import annotations

from typing import Protocol

from dra_driver.kube.reviews import ReviewApi


class StatusSource(Protocol):
    """What the page shows, computed for each request. Any thread may call any method."""

    def metrics(self) -> bytes:
        """Return the text that Prometheus reads."""

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the agent is not ready; none if it is."""

    def review_api(self) -> ReviewApi:
        """Open the client with which readers of metrics are reviewed. Called once, when the first has to be reviewed.

        Raises: DriverError for unusable credentials.
        """
