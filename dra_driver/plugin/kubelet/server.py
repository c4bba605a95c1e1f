"""Plugin server: the plugin's two sockets, from the registration until the last call has been answered.

The service is up before the kubelet can learn of it, and ends after the registration. `claim_calls` answers the calls.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
from pathlib import Path

from dra_driver.model.stamp import Stamp
from dra_driver.plugin.kubelet.call_log import AnswerListener, CallLog
from dra_driver.plugin.kubelet.claim_calls import PrepareCall, UnprepareCall
from dra_driver.plugin.kubelet.health_stream import HEALTH_VERSIONS, HealthStream
from dra_driver.plugin.kubelet.helper_threads import HelperThreads
from dra_driver.plugin.kubelet.methods import PREPARES, UNPREPARES, VERSIONS, RpcMethods, dra_methods
from dra_driver.plugin.kubelet.registration import Registration
from dra_driver.plugin.kubelet.sockets import choose_paths, is_ours, make_folder, open_socket, remove, sweep
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.plugin.rpc.server import RpcServer
from dra_driver.telemetry.late_log import LateLog
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import NEEDED

log = logging.getLogger(__name__)


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
        late_log: LateLog | None = None,
        health: HealthStream | None = None,
    ) -> None:
        self._driver, self._preparer, self._late_log = driver, preparer, late_log or LateLog()
        self._call_log = CallLog(listener, self._late_log)
        self._health = health
        self.paths = choose_paths(driver, registrar_dir, plugins_dir / driver, pod_uid)
        self._registration = Registration(
            driver, self.paths.registration, self.paths.service, also=HEALTH_VERSIONS if health else ()
        )
        # The pools serve calls with several claims; their threads are started when they are needed.
        self._prepares = HelperThreads(PREPARES, thread_name_prefix="prepare")
        self._unprepares = HelperThreads(UNPREPARES, thread_name_prefix="unprepare")
        self._server: RpcServer | None = None
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

    def fault(self) -> str:
        """Return why no call of the kubelet is answered, "" if they are (telemetry.part_thread)."""
        return "" if self._server is None or self._server.is_answering else "no thread answers the kubelet's calls"

    def start(self) -> None:
        """Serve, then register. Raises: NodeError; `stop` then removes what was made."""
        make_folder(self.paths.service.parent)
        make_folder(self.paths.registration.parent)
        sweep(self._driver, self.paths)
        server = self._server = RpcServer(self._methods())
        self._made = open_socket(self.paths.service, server.add_socket)
        self._registration.bind(server)
        self._late_log.start()
        server.start()
        NEEDED.add(self)
        log.info("plugin serving", extra=fields(driver=self._driver, socket=str(self.paths.service)))

    def stop(self, drain_s: float) -> None:
        """Remove the registration, refuse new calls, and let running ones finish within `drain_s` seconds."""
        NEEDED.release(self)
        self._registration.stop()
        if self._server is None:
            return
        if self._health is not None:
            self._health.close()
        done = self._server.stop(drain_s)
        remove(self.paths.service, self._made)
        done.wait(max(0.0, drain_s - 1.0))
        self._preparer.close()  # calls that are still waiting answer now
        done.wait(2.0)
        for pool in (self._prepares, self._unprepares):
            pool.shutdown(wait=False, cancel_futures=True)
        self._late_log.stop()
        self._server = None
        sweep(self._driver, self.paths)

    def tidy(self) -> int:
        """Remove the sockets of instances that have been killed since the start, and return how many there were."""
        return sweep(self._driver, self.paths) if self._server is not None else 0

    def _methods(self) -> RpcMethods:
        methods = dict(self._registration.methods())
        for version in VERSIONS:
            prepare = PrepareCall(version, self._preparer, self._prepares, self._call_log)
            unprepare = UnprepareCall(version, self._preparer, self._unprepares, self._call_log)
            methods |= dra_methods(version, prepare, unprepare)
        if self._health is not None:
            for service in HEALTH_VERSIONS:
                methods |= self._health.methods(service)
        return methods
