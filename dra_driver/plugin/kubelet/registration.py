"""Registration: a second socket of the plugin's server, in the folder where the kubelet looks for plugins.

This socket is the last to appear and the first to be removed. One server serves both sockets, so a client that gets an
answer here finds the service running. A kubelet up to 1.35 does not retry a failed registration until the socket
appears again, so after a refusal the socket is removed and made again.
Source: Kubernetes kubelet plugin registration API v1; kubelet pluginwatcher (names that begin with a dot are ignored).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dra_driver.model.errors import NodeError
from dra_driver.model.stamp import Stamp
from dra_driver.plugin._proto.k8s.pluginregistration.v1 import api_pb2 as messages
from dra_driver.plugin.kubelet.methods import (
    PLUGIN_TYPE,
    VERSIONS,
    CallPool,
    registration_methods,
)
from dra_driver.plugin.kubelet.same_name_drivers import MARK, STARTED, started
from dra_driver.plugin.kubelet.sockets import is_ours, open_socket, remove, set_aside
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import start_thread

log = logging.getLogger(__name__)

RETRY_FIRST_SECONDS, RETRY_LAST_SECONDS = 5.0, 120.0


class Registration:
    """Answers the kubelet at `path` with the driver's name and the `endpoint` of its DRA service.

    `also` lists the versions of other services at the endpoint.
    """

    def __init__(self, driver: str, path: Path, endpoint: Path, *, also: Sequence[str] = ()) -> None:
        self._driver, self._path, self._endpoint = driver, path, endpoint
        self._versions = [*VERSIONS, *also]
        self._made: Stamp | None = None  # identifies the socket that is ours
        self._mutex = threading.Lock()  # guards everything below
        self._is_open = self._is_stuck = False
        self._pause_s = RETRY_FIRST_SECONDS
        self._retry: threading.Timer | None = None
        self.is_registered = False
        self.last_error = ""

    @property
    def is_reachable(self) -> bool:
        """Return whether the socket is still ours, and will be offered again if the kubelet has refused it.

        Otherwise a kubelet would not find this plugin.
        """
        with self._mutex:
            return not self._is_open or (is_ours(self._path, self._made) and not self._is_stuck)

    def bind(self, server: grpc.Server) -> None:
        """Make a server that has not started yet listen here too. Raises: NodeError."""
        made = open_socket(self._path, partial(add_port, server))
        with self._mutex:
            self._made, self._is_open = made, True

    def methods(self, pool: CallPool) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the methods of the registration service, answered by the threads of `pool`."""
        return registration_methods(self, pool)

    def stop(self) -> None:
        """Remove the socket, so that the kubelet sends no new calls to this instance."""
        with self._mutex:
            self._is_open = False
            if self._retry is not None:
                self._retry.cancel()
            remove(self._path, self._made)
            self.is_registered = False

    # What the kubelet calls

    def get_info(self, _request: messages.InfoRequest, context: grpc.ServicerContext) -> messages.PluginInfo:
        """Return the plugin's name and endpoint, with a mark by which other instances of this driver recognize it."""
        context.set_trailing_metadata((MARK, (STARTED, started())))
        return messages.PluginInfo(
            type=PLUGIN_TYPE, name=self._driver, endpoint=str(self._endpoint), supported_versions=self._versions
        )

    def notify(
        self, request: messages.RegistrationStatus, _context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        """Record whether the kubelet accepted the registration; after a refusal, make the socket again later."""
        self.is_registered, self.last_error = request.plugin_registered, request.error
        if request.plugin_registered:
            log.info("registered with the kubelet", extra=fields(driver=self._driver))
        else:
            log.error("the kubelet refused the registration", extra=fields(driver=self._driver, err=request.error))
            self._try_later()
        return messages.RegistrationStatusResponse()

    # The socket

    def _try_later(self) -> None:
        with self._mutex:
            if not self._is_open or (self._retry is not None and self._retry.is_alive()):
                return
            retry = threading.Timer(self._pause_s, self._reopen)
            retry.name, retry.daemon = "registration", True
            try:
                start_thread(retry)
            except NodeError as error:  # only a new start of the process makes the kubelet ask again
                self._is_stuck, self.last_error = True, str(error)
                return
            self._retry = retry
            self._pause_s = min(self._pause_s * 2, RETRY_LAST_SECONDS)

    def _reopen(self) -> None:
        with self._mutex:
            if not self._is_open or not is_ours(self._path, self._made):
                return
            aside = set_aside(self._path)
            try:
                aside.unlink(missing_ok=True)
                os.link(self._path, aside)
                self._path.unlink()
                os.link(aside, self._path)
                aside.unlink()
            except OSError as error:
                self.last_error = f"socket {self._path} can't be re-created: {error.strerror}"
                log.warning("registration socket can't be re-created", extra=fields(err=self.last_error))
            else:
                log.info("registration socket re-created", extra=fields(socket=str(self._path)))


def add_port(server: grpc.Server, path: Path) -> None:
    """Bind a unix socket, and listen on it. Raises: NodeError("node.socket")."""
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as exc:
        raise NodeError("socket", f"can't listen on {path}: {exc}") from exc
