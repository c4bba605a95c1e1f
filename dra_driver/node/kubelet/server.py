"""Claim calls: the two methods of the DRA service. An error is reported for its claim, and never fails a whole call.

Both versions of the service share one implementation; v1beta1 has no share ids. The claims of one call are worked on at
the same time.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import grpc

from dra_driver.base.errors import DriverError
from dra_driver.base.machine import Deadline, Stamp
from dra_driver.base.telemetry.logs import fields, no_thread
from dra_driver.node.claims.plan import PreparedDevice
from dra_driver.node.kubelet.methods import (
    HEALTH_VERSIONS,
    MESSAGES,
    STREAMS,
    VERSIONS,
    CallPool,
    HealthStream,
    dra_methods,
)
from dra_driver.node.kubelet.registration import Registration, add_port
from dra_driver.node.kubelet.sockets import choose_paths, is_ours, make_folder, open_socket, remove, sweep
from dra_driver.node.prepare.preparer import Preparer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimResponse:
    """The answer for one claim: its devices, or the code of an error and the text for the kubelet's Event."""

    devices: tuple[PreparedDevice, ...] = ()
    code: str = "ok"
    text: str = ""


class AnswerListener(Protocol):
    """Is called after a call of the kubelet was answered for a claim, by the thread that answers it."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """React to a call that was answered for one claim after `seconds`; the code is an error's, or "ok"."""


class ClaimCall:
    """Answers the calls of one method in one version, and never raises.

    `pool` has the threads that answer the calls, and that work on the further claims of a call.
    """

    rpc: ClassVar[str]

    def __init__(self, version: str, preparer: Preparer, pool: CallPool, listener: AnswerListener | None) -> None:
        self._messages, self._version, self._preparer, self._listener = MESSAGES[version], version, preparer, listener
        self._pool = pool

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer one call of the kubelet."""
        raise NotImplementedError

    def _work(self, claim: Any, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        """Do what the method does for one claim, and return its devices. Raises: DriverError."""
        raise NotImplementedError

    def _message(self, answer: ClaimResponse) -> Any:
        """Return the answer for one claim as a message."""
        raise NotImplementedError

    def _answers(self, claims: Any, deadline: Deadline) -> dict[str, Any]:
        """Return the answers for all claims of a call by UID, working in parallel as far as the pool has free threads.

        Some claims may have to wait for devices, and the other claims should not wait for those. This thread works on
        claims too, so that calls make progress even if they occupy all threads of the pool.
        """
        if len(claims) == 1:
            return {claims[0].uid: self._message(self._answer(claims[0], deadline))}
        todo = deque({claim.uid: claim for claim in claims}.values())
        answers: dict[str, Any] = {}
        helpers = [self._pool.submit(self._answer_all, todo, answers, deadline) for _ in range(len(todo) - 1)]
        self._answer_all(todo, answers, deadline)
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        return answers

    def _answer_all(self, todo: deque[Any], answers: dict[str, Any], deadline: Deadline) -> None:
        while True:
            try:
                claim = todo.popleft()
            except IndexError:
                return
            answers[claim.uid] = self._message(self._answer(claim, deadline))

    def _answer(self, claim: Any, deadline: Deadline) -> ClaimResponse:
        started = time.monotonic()
        try:
            answer = ClaimResponse(self._work(claim, deadline))
        except DriverError as error:
            answer = ClaimResponse((), error.code, f"{error} [{error.code}]")
        except Exception as error:
            log.exception("bug: unexpected error", extra=fields(rpc=self.rpc, claim_uid=claim.uid))
            answer = ClaimResponse((), "driver.bug", f"{type(error).__name__}: {error} [driver.bug]")
        self._report(claim, answer, time.monotonic() - started)
        return answer

    def _report(self, claim: Any, answer: ClaimResponse, seconds: float) -> None:
        if self._listener is not None:
            self._listener.answered(self.rpc, seconds, answer.code)
        record = {"claim": f"{claim.namespace}/{claim.name}", "claim_uid": claim.uid, "rpc": self.rpc}
        took_ms = round(seconds * 1000, 1)
        if answer.text:
            log.warning("claim refused", extra=fields(took_ms=took_ms, code=answer.code, err=answer.text, **record))
        else:
            log.info("claim answered", extra=fields(took_ms=took_ms, devices=len(answer.devices), **record))


class PrepareCall(ClaimCall):
    """NodePrepareResources."""

    rpc = "prepare"

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Prepare the claims of a call."""
        deadline = Deadline.of_call(context.time_remaining(), is_wanted=context.is_active)
        return self._messages.NodePrepareResourcesResponse(claims=self._answers(request.claims, deadline))

    def _work(self, claim: Any, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        return self._preparer.prepare(claim.namespace, claim.name, claim.uid, deadline)

    def _message(self, answer: ClaimResponse) -> Any:
        with_shares = self._version == "v1.DRAPlugin"
        devices = [_encode(self._messages, device, with_shares=with_shares) for device in answer.devices]
        return self._messages.NodePrepareResourceResponse(devices=devices, error=answer.text)


class UnprepareCall(ClaimCall):
    """NodeUnprepareResources."""

    rpc = "unprepare"

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Unprepare the claims of a call."""
        deadline = Deadline.of_call(context.time_remaining(), goes_first=True, is_wanted=context.is_active)
        return self._messages.NodeUnprepareResourcesResponse(claims=self._answers(request.claims, deadline))

    def _work(self, claim: Any, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        self._preparer.unprepare(claim.uid, deadline)
        return ()

    def _message(self, answer: ClaimResponse) -> Any:
        return self._messages.NodeUnprepareResourceResponse(error=answer.text)


def _encode(messages: Any, device: PreparedDevice, *, with_shares: bool) -> Any:
    wire = messages.Device(
        request_names=[device.request] if device.request else [],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )
    if with_shares and device.share_id:
        wire.share_id = device.share_id
    return wire


# Plugin server: the plugin's two sockets, from the registration until the last call has been answered.

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
