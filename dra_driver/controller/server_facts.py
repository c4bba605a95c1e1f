"""Server facts: facts about the API server and this node, asked for once, and again when they may have changed.

In: `KubeApi`. Out: the server's minor version (it decides where counters belong) and the ownerReference of our slices.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import KubeApi, ServerVersion
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.kubernetes import Since
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FRESH_SECONDS = 3600.0
_UNKNOWN = ServerVersion(0, 0, "")


class ServerFacts:
    """Facts about one API server and one node.

    One thread asks for the facts; `ask_again` and `forget_node` may be called from any thread.
    """

    def __init__(self, api: KubeApi, node: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._node, self._clock = api, node, clock
        self._asked_at = float("-inf")
        self._owner: Wire | None = None
        self._version = _UNKNOWN
        self._is_known = False
        self._is_changed = False

    @property
    def git_version(self) -> str:
        """The version that the server reported last; "" before the first answer."""
        return self._version.git

    @property
    def orders_versions(self) -> bool:
        """Whether the resourceVersions of this server are numbers that grow, which is promised from 1.35 on."""
        return self._version.minor >= Since.ORDERED_RESOURCE_VERSIONS

    @property
    def is_fresh(self) -> bool:
        """Whether the version was asked for recently.

        Ten thousand agents together renew 26 watches a second, and should not ask for it each time.
        """
        return self._clock() - self._asked_at < FRESH_SECONDS

    def ask_early(self) -> None:
        """Ask for both facts before they are needed; a failure is reported when they are needed."""
        with contextlib.suppress(ApiError):
            self.owner()
            self.minor()

    def owner(self) -> Wire:
        """Return the ownerReference to the node, whose deletion then deletes the slices as well.

        Raises: ApiError; "api.no-node" while the kubelet has not created the Node object.
        """
        owner = self._owner
        if owner is None:
            uid = self._node_uid()
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
            self._owner = owner
        return owner

    def minor(self) -> int:
        """Return the server's minor version; 0 if it does not report one. Raises: ApiError."""
        if not self._is_known:
            self._asked_at = self._clock()
            # Set before asking, because a request to ask again may come while we wait for the answer.
            self._is_known = True
            try:
                version = self._api.server_version()
            except ApiError as err:
                if err.status not in (403, 404):
                    self._is_known = False
                    raise
                version = _UNKNOWN
            if version != self._version:
                self._is_changed = self._version is not _UNKNOWN
                log.info("API server version", extra=fields(version=version.git or "unknown"))
                self._version = version
        return self._version.minor

    def is_changed(self) -> bool:
        """Return whether the version has changed since the last call."""
        was_changed, self._is_changed = self._is_changed, False
        return was_changed

    def ask_again(self) -> None:
        """Ask for the version again the next time it is needed."""
        self._is_known = False

    def forget_node(self) -> None:
        """Ask for the node again the next time it is needed."""
        self._owner = None

    def _node_uid(self) -> str:
        try:
            node = self._api.get_node(self._node)
        except ApiError as err:
            if err.code != NOT_FOUND:
                raise
            raise ApiError(
                "no-node",
                f"node {self._node!r} does not exist in the API: its slices need it as their owner",
                status=404,
                hint="it appears when the kubelet registers; otherwise check --node-name",
                retry=Retry.LATER,
            ) from err
        return str(node["metadata"]["uid"])
