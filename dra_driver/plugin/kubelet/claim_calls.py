"""Claim calls: the two methods of the DRA service. An error is reported for its claim, and never fails a whole call.

Both versions of the service share one implementation; v1beta1 has no share ids. The claims of one call are worked on at
the same time.
Source: Kubernetes DRA plugin API v1 and v1beta1.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, ClassVar, NamedTuple

from dra_driver.claims.plan import PreparedDevice
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.kubelet.call_log import CallLog, CallOutcome
from dra_driver.plugin.kubelet.helper_threads import HelperThreads
from dra_driver.plugin.kubelet.methods import MESSAGES
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.plugin.rpc.call import RpcCall
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class ClaimResponse(NamedTuple):
    """The answer for one claim: its devices, or the code of an error and the text for the kubelet's Event."""

    devices: tuple[PreparedDevice, ...] = ()
    code: str = "ok"
    text: str = ""


class ClaimCall:
    """Answers the calls of one method in one version, and never raises.

    `pool` has the threads for calls with several claims.
    """

    rpc: ClassVar[str]

    def __init__(self, version: str, preparer: Preparer, pool: HelperThreads, call_log: CallLog) -> None:
        self._messages, self._version, self._preparer, self._log = MESSAGES[version], version, preparer, call_log
        self._pool = pool

    def __call__(self, request: Any, call: RpcCall) -> Any:
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
        took_s, name = time.monotonic() - started, f"{claim.namespace}/{claim.name}"
        self._log.add(CallOutcome(self.rpc, name, claim.uid, took_s, len(answer.devices), answer.code, answer.text))
        return answer


class PrepareCall(ClaimCall):
    """NodePrepareResources."""

    rpc = "prepare"

    def __call__(self, request: Any, call: RpcCall) -> Any:
        """Prepare the claims of a call, unless the kubelet has cancelled it while it was queued and will ask again."""
        if not call.is_active():
            return self._messages.NodePrepareResourcesResponse()
        deadline = Deadline.of_call(call.time_remaining())
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

    def __call__(self, request: Any, call: RpcCall) -> Any:
        """Unprepare the claims of a call."""
        deadline = Deadline.of_call(call.time_remaining(), goes_first=True)
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
