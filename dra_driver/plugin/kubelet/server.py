"""Plugin server: the plugin's two sockets, from the registration until the last call has been answered.

The service is up before the kubelet can learn of it, and ends after the registration. `claim_calls` answers the calls.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dra_driver.model.stamp import Stamp
from dra_driver.plugin.kubelet.claim_calls import AnswerListener, PrepareCall, UnprepareCall
from dra_driver.plugin.kubelet.health_stream import HEALTH_VERSIONS, STREAMS, HealthStream
from dra_driver.plugin.kubelet.methods import VERSIONS, CallPool, dra_methods
from dra_driver.plugin.kubelet.registration import Registration, add_port
from dra_driver.plugin.kubelet.sockets import choose_paths, is_ours, make_folder, open_socket, remove, sweep
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import no_thread

log = logging.getLogger(__name__)

# How many calls of each kind are answered at the same time; further calls wait for their turn. A Prepare may wait 35 s
# for a device, and must not hold up the Unprepare that frees the device.
PREPARES, UNPREPARES, REGISTRATIONS = 128, 32, 2
_OPTIONS = (("grpc.max_receive_message_length", 1 << 20), ("grpc.max_concurrent_streams", 512))
_CUT_OFF_SECONDS = 2.0  # how long calls that have to give up at the end may take to answer


class PluginServer:
    """The plugin's two sockets."""

    def __init__(
        self,
        *,
        driver: str,
        registrar_dir: Path,
        plugins_dir: Path,
        pod_uid: str,
        preparer: Preparer,
        listener: AnswerListener | None = None,
        health: HealthStream | None = None,
    ) -> None:
        self._driver, self._preparer, self._listener, self._health = driver, preparer, listener, health
        self.paths = choose_paths(driver, registrar_dir, plugins_dir / driver, pod_uid)
        self._registration = Registration(
            driver, self.paths.registration, self.paths.service, also=HEALTH_VERSIONS if health else ()
        )
        self._pools: list[CallPool] = []
        self._server: grpc.Server | None = None
        self._made: Stamp | None = None  # identifies the service's socket as the one that we made

    @property
    def registered(self) -> bool:
        """Return whether the kubelet has accepted the registration."""
        return self._registration.is_registered

    @property
    def last_error(self) -> str:
        """Return the last error of the registration, as the kubelet reported it or as seen here."""
        return self._registration.last_error

    @property
    def is_reachable(self) -> bool:
        """Return whether both sockets are still ours; otherwise a restarted kubelet could not call this plugin."""
        return is_ours(self.paths.service, self._made) and self._registration.is_reachable

    def start(self) -> None:
        """Serve, then register. Raises: NodeError; `stop` then removes what was made."""
        make_folder(self.paths.service.parent)
        make_folder(self.paths.registration.parent)
        sweep(self._driver, self.paths)
        registrations = self._pool(REGISTRATIONS, "registration")
        server = self._server = grpc.server(registrations, self._methods(registrations), options=_OPTIONS)
        self._made = open_socket(self.paths.service, partial(add_port, server))
        self._registration.bind(server)
        try:
            server.start()
        except RuntimeError as error:
            raise no_thread("of grpcio", error) from error
        log.info("plugin serving", extra=fields(driver=self._driver, socket=str(self.paths.service)))

    def stop(self, drain_s: float) -> None:
        """Remove the registration, refuse new calls, and let running ones finish within `drain_s` seconds."""
        self._registration.stop()
        if self._server is None:
            return
        if self._health is not None:
            self._health.close()
        done = self._server.stop(drain_s)
        remove(self.paths.service, self._made)
        done.wait(max(0.0, drain_s - 1.0))
        self._preparer.close()  # calls that are still waiting answer now
        done.wait(_CUT_OFF_SECONDS)
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._server = None
        sweep(self._driver, self.paths)

    def tidy(self) -> int:
        """Remove the sockets of instances that have been killed since the start, and return how many there were."""
        return sweep(self._driver, self.paths) if self._server is not None else 0

    def _pool(self, size: int, name: str) -> CallPool:
        self._pools.append(CallPool(size, name))
        return self._pools[-1]

    def _methods(self, registrations: CallPool) -> list[grpc.GenericRpcHandler[Any, Any]]:
        prepares, unprepares = self._pool(PREPARES, "prepare"), self._pool(UNPREPARES, "unprepare")
        methods = [self._registration.methods(registrations)]
        for version in VERSIONS:
            prepare = PrepareCall(version, self._preparer, prepares, self._listener)
            unprepare = UnprepareCall(version, self._preparer, unprepares, self._listener)
            methods.append(dra_methods(version, prepare, unprepare, prepares=prepares, unprepares=unprepares))
        if self._health is not None:
            streams = self._pool(STREAMS + 1, "health-stream")
            methods += [self._health.methods(service, streams) for service in HEALTH_VERSIONS]
        return methods
