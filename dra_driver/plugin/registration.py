"""Registration: one small gRPC server on the socket where the kubelet looks for plugins.

The socket appears last and goes first. A kubelet up to 1.35 does not try a failed registration again until the socket
appears anew, so a keeper thread makes it anew after a refusal, and when somebody removed it.
Source: Kubernetes kubelet plugin registration API v1.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from dra_driver.model.errors import DriverError, NodeError
from dra_driver.plugin._proto.k8s.pluginregistration.v1 import api_pb2 as messages
from dra_driver.plugin.methods import PLUGIN_TYPE, VERSIONS, Context, registration_methods
from dra_driver.plugin.namesakes import MARK
from dra_driver.plugin.sockets import Identity, bind_privately, free_path, identity, make_folder
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

KEEPER_SECONDS = 2.0
RETRY_FIRST_SECONDS, RETRY_LAST_SECONDS = 5.0, 120.0


class Registration:
    """Answers the kubelet at `path` with the driver's name and the `endpoint` of its DRA service."""

    def __init__(self, driver: str, path: Path, endpoint: Path) -> None:
        self._driver, self._path, self._endpoint = driver, path, endpoint
        self._server: grpc.Server | None = None
        self._made: Identity | None = None  # of the socket that is ours
        self._stop = threading.Event()
        self._refused = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="registration", daemon=True)
        self.is_registered = False
        self.last_error = ""

    def start(self) -> None:
        """Open the socket. Raises: NodeError."""
        self._open()
        self._keeper.start()

    def stop(self) -> None:
        """Take the socket away: the kubelet sends no new calls to this instance."""
        self._stop.set()
        self._refused.set()
        if self._keeper.is_alive():
            self._keeper.join(5.0)
        self._close()
        self.is_registered = False

    # What the kubelet calls

    def get_info(self, _request: messages.InfoRequest, context: Context) -> messages.PluginInfo:
        """Tell who we are and where we serve; and another instance of ours that it is one."""
        context.set_trailing_metadata((MARK,))
        return messages.PluginInfo(
            type=PLUGIN_TYPE, name=self._driver, endpoint=str(self._endpoint), supported_versions=list(VERSIONS)
        )

    def notify(self, request: messages.RegistrationStatus, _context: Context) -> messages.RegistrationStatusResponse:
        """Take note of what came of it."""
        self.is_registered, self.last_error = request.plugin_registered, request.error
        if request.plugin_registered:
            log.info("registered with the kubelet", extra=fields(driver=self._driver))
        else:
            log.error("the kubelet refused the registration", extra=fields(driver=self._driver, err=request.error))
            self._refused.set()
        return messages.RegistrationStatusResponse()

    # The socket

    def _open(self) -> None:
        make_folder(self._path.parent)
        free_path(self._path)
        server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="registration"))
        server.add_generic_rpc_handlers((registration_methods(self),))
        bind_privately(self._path, lambda: add_port(server, self._path))
        server.start()
        self._server, self._made = server, identity(self._path)

    def _close(self) -> None:
        if self._server is not None:
            self._server.stop(grace=1.0).wait(2.0)
            self._server = None
            if self._is_ours():
                self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        return self._made is not None and identity(self._path) == self._made

    def _keep(self) -> None:
        pause = RETRY_FIRST_SECONDS
        while not self._stop.is_set():
            self._refused.wait(KEEPER_SECONDS)
            if self._refused.is_set():
                if self._stop.wait(pause):
                    return
                pause = min(pause * 2, RETRY_LAST_SECONDS)
            elif self._is_ours():
                continue
            self._reopen()

    def _reopen(self) -> None:
        log.info("registration socket made anew", extra=fields(socket=str(self._path)))
        self._refused.clear()
        try:
            self._close()
            self._open()
        except DriverError as error:
            self.last_error = str(error)
            log.warning("registration socket can't be made", extra=fields(code=error.code, err=str(error)))


def add_port(server: grpc.Server, path: Path) -> None:
    """Listen on a unix socket. Raises: NodeError("node.socket")."""
    try:
        bound = server.add_insecure_port(f"unix:{path}")
    except RuntimeError as exc:
        raise NodeError("socket", f"can't listen on {path}: {exc}") from exc
    if not bound:
        raise NodeError("socket", f"can't listen on {path}")
