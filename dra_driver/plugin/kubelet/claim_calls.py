"""Claim calls: the two methods of the DRA service. An error is reported for its claim, and never fails a whole call.

Both versions of the service share one implementation; v1beta1 has no share ids. The claims of one call are worked on at
the same time.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, ClassVar, NamedTuple, Protocol

import grpc

from dra_driver.claims.plan import PreparedDevice
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.kubelet.methods import MESSAGES, CallPool
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class ClaimResponse(NamedTuple):
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
        """Answer claims until none is left."""
        while True:
            try:
                claim = todo.popleft()
            except IndexError:
                return
            answers[claim.uid] = self._message(self._answer(claim, deadline))

    def _answer(self, claim: Any, deadline: Deadline) -> ClaimResponse:
        """Work on one claim, and return the answer for it."""
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
        """Count and log the answer for one claim."""
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
