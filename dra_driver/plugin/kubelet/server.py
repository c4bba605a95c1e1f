"""PluginServer: the RPC boundary. Every fault becomes the error of its claim; no fault fails a whole call.

Both versions of the service share one implementation; v1beta1 has no share ids. The claims of one call are worked on at
the same time. The service is up before the kubelet can learn of it, and outlives the registration. Each kind of call
has its own threads: Prepares that wait for devices must not hold up the Unprepare that frees those devices.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dra_driver.claims.plan import PreparedDevice
from dra_driver.model.errors import DriverError
from dra_driver.model.stamp import Stamp
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.kubelet.health_stream import HEALTH_VERSIONS, HealthStream
from dra_driver.plugin.kubelet.methods import MESSAGES, VERSIONS, Context, dra_methods, in_pool
from dra_driver.plugin.kubelet.registration import Registration, add_port
from dra_driver.plugin.kubelet.sockets import (
    bind_privately,
    choose_paths,
    free_path,
    identity,
    make_folder,
    sweep,
)
from dra_driver.plugin.prepare import Preparer
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

# Threads for each kind of call, started when needed. A Prepare may wait 35 s for a device; further calls queue up.
PREPARES, UNPREPARES, REGISTRATIONS = 128, 32, 2

Answered = Callable[[str, float, str], None]  # rpc, seconds, "ok" or the error's code


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
        answered: Answered = lambda *_: None,
        health: HealthStream | None = None,
    ) -> None:
        self._driver, self._preparer, self._answered = driver, preparer, answered
        self._health = health
        self.paths = choose_paths(driver, registrar_dir, plugins_dir / driver, pod_uid)
        self._registration = Registration(
            driver, self.paths.registration, self.paths.service, also=HEALTH_VERSIONS if health else ()
        )
        self._prepares = ThreadPoolExecutor(PREPARES, thread_name_prefix="prepare")
        self._unprepares = ThreadPoolExecutor(UNPREPARES, thread_name_prefix="unprepare")
        self._registrations = ThreadPoolExecutor(REGISTRATIONS, thread_name_prefix="registration")
        self._server: grpc.Server | None = None
        self._made: Stamp | None = None  # of the service's socket that is ours

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
        return self._is_ours() and self._registration.is_reachable

    def start(self) -> None:
        """Serve, then register. Raises: NodeError."""
        make_folder(self.paths.service.parent)
        make_folder(self.paths.registration.parent)
        sweep(self._driver, self.paths)
        free_path(self.paths.service)
        server = grpc.server(self._registrations)
        server.add_generic_rpc_handlers((*map(self._methods, VERSIONS), self._registration.methods()))
        if self._health is not None:
            server.add_generic_rpc_handlers(tuple(map(self._health.methods, HEALTH_VERSIONS)))
        bind_privately(self.paths.service, lambda: add_port(server, self.paths.service))
        self._registration.bind(server)
        server.start()
        self._server, self._made = server, identity(self.paths.service)
        log.info("plugin serving", extra=fields(driver=self._driver, socket=str(self.paths.service)))

    def stop(self, drain_s: float) -> None:
        """Remove the registration, refuse new calls, and let running ones finish within `drain_s` seconds."""
        self._registration.stop()
        if self._server is None:
            return
        if self._health is not None:
            self._health.close()
        done = self._server.stop(grace=drain_s)
        done.wait(max(0.0, drain_s - 1.0))
        self._preparer.close()  # calls that are still waiting answer now
        done.wait(2.0)
        for pool in (self._prepares, self._unprepares, self._registrations):
            pool.shutdown(wait=False, cancel_futures=True)
        self._server = None
        if self._is_ours():
            self.paths.service.unlink(missing_ok=True)
        sweep(self._driver, self.paths)

    def tidy(self) -> int:
        """Remove the sockets of instances that were killed since the start, and return their number."""
        return sweep(self._driver, self.paths) if self._server is not None else 0

    def _is_ours(self) -> bool:
        return self._made is not None and identity(self.paths.service) == self._made

    def _methods(self, version: str) -> grpc.GenericRpcHandler[Any, Any]:
        prepare = in_pool(self._prepares, partial(self._prepare, version))
        return dra_methods(version, prepare, in_pool(self._unprepares, partial(self._unprepare, version)))

    def _prepare(self, version: str, request: Any, context: Context) -> Any:
        messages = MESSAGES[version]
        if not context.is_active():  # queued until the kubelet gave up; the kubelet will ask again
            return messages.NodePrepareResourcesResponse()
        deadline = Deadline.of_call(context.time_remaining())

        def answer(claim: Any) -> Any:
            devices, error = self._guard(
                "prepare",
                claim,
                lambda: self._preparer.prepare(claim.namespace, claim.name, claim.uid, deadline),
                context,
            )
            encoded = [_encode(messages, device, with_shares=version == "v1.DRAPlugin") for device in devices or ()]
            return messages.NodePrepareResourceResponse(devices=encoded, error=error)

        return messages.NodePrepareResourcesResponse(claims=_for_each(request.claims, answer, self._prepares))

    def _unprepare(self, version: str, request: Any, context: Context) -> Any:
        messages = MESSAGES[version]
        deadline = Deadline.of_call(context.time_remaining(), goes_first=True)

        def answer(claim: Any) -> Any:
            _, error = self._guard("unprepare", claim, lambda: self._preparer.unprepare(claim.uid, deadline), context)
            return messages.NodeUnprepareResourceResponse(error=error)

        answers = _for_each(request.claims, answer, self._unprepares)
        return messages.NodeUnprepareResourcesResponse(claims=answers)

    def _guard(
        self, rpc: str, claim: Any, work: Callable[[], tuple[PreparedDevice, ...] | None], context: Context
    ) -> tuple[tuple[PreparedDevice, ...] | None, str]:
        """Run the work for one claim; return its result, and its error as the text of the kubelet's event."""
        started = time.monotonic()
        result, code, text = None, "ok", ""
        try:
            result = work()
        except DriverError as error:
            code, text = error.code, f"{error} [{error.code}]"
        except Exception as error:
            log.exception("bug: unexpected error", extra=fields(rpc=rpc, claim_uid=claim.uid))
            code, text = "driver.bug", f"{type(error).__name__}: {error} [driver.bug]"
        seconds = time.monotonic() - started

        def note() -> None:
            self._answered(rpc, seconds, code)
            _log(rpc, claim, seconds, devices=len(result or ()), code=code, text=text)

        if not context.add_callback(note):  # log after the answer: the kubelet waits for it
            note()
        return result, text


def _log(rpc: str, claim: Any, seconds: float, *, devices: int, code: str, text: str) -> None:
    record = {
        "claim": f"{claim.namespace}/{claim.name}",
        "claim_uid": claim.uid,
        "took_ms": round(seconds * 1000, 1),
    }
    if text:
        log.warning("claim refused", extra=fields(rpc=rpc, code=code, err=text, **record))
    else:
        log.info("claim answered", extra=fields(rpc=rpc, devices=devices, **record))


def _for_each(claims: Any, answer: Callable[[Any], Any], pool: ThreadPoolExecutor) -> dict[str, Any]:
    """Answer every claim of a call, keyed by UID, in parallel as far as the pool has free threads.

    Any number of claims may wait for devices, and the other claims should not wait for them. Where no other thread is
    free this thread does the work itself, so that a pool full of such calls never waits for itself.
    """
    todo = deque({claim.uid: claim for claim in claims}.values())
    answers: dict[str, Any] = {}

    def work() -> None:
        with suppress(IndexError):
            while True:
                claim = todo.popleft()
                answers[claim.uid] = answer(claim)

    helpers = [pool.submit(work) for _ in range(len(todo) - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return answers


def _encode(messages: Any, device: PreparedDevice, *, with_shares: bool) -> Any:
    wire = messages.Device(
        request_names=[device.request] if device.request else [],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=list(device.cdi_ids),
    )
    if with_shares and device.share_id:
        wire.share_id = device.share_id
    return wire
