"""Node claims: the claims on this node that the ledger does not know, found without listing the cluster's claims.

In: what the kubelet reports about its pods, the ledger. Out: those claims as the API server has them, each read once
with a GET. A claim that can't be read counts with what the kubelet reports about it, so that it holds its devices. A
kubelet that does not answer is waited for, but not forever, because its socket may not be mounted; after that, the
other sources decide (docs/decisions/0013 explains why that is safe). With `listed`, claims from a list of the cluster's
claims count too, for kubelets that don't report claims. Claims are never changed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from dra_driver.base.errors import ApiError, DriverError, LedgerError, NodeError, Retry
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.versions import Since, minor_of
from dra_driver.base.wire import ClaimName, ClaimWire, uid_of
from dra_driver.hardware.facts import Problem
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import ClaimApi, NodeApi
from dra_driver.node.devices.offering import NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.node.neighbours.pod_resources import (
    CODE,
    LIST_SECONDS,
    HeldDevice,
    ListedClaims,
    NodePods,
    PodClaim,
    with_devices,
)

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0  # how long to wait for a silent kubelet after the first request
READ_SECONDS = 10.0  # how long one call reads claims; the others count with what the kubelet reports about them
GET_SECONDS = 2.0
FRESH_SECONDS = 2.0  # one answer of the kubelet serves all callers that ask within this time
VERSION_SECONDS = 600.0  # between two reads of the kubelet's version
SILENT = "node.kubelet-silent"
_FORBIDDEN = 403


class KubeletPods(Protocol):
    """The question that this module asks the kubelet."""

    def pods(self) -> NodePods:
        """Return this node's pods and their claims. Raises: NodeError."""


class NodeAndClaimApi(NodeApi, ClaimApi, Protocol):
    """The questions that this module asks the API server."""


class NodeClaims:
    """The unknown claims of one node. All methods may be called from any thread."""

    def __init__(
        self,
        node: NodeIdentity,
        name: str,
        *,
        api: NodeAndClaimApi,
        kubelet: KubeletPods,
        ledger: Ledger,
        listed: ListedClaims | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._name = node, name
        self._api, self._kubelet, self._ledger, self._listed = api, kubelet, ledger, listed
        self._clock = clock
        self._mutex = threading.RLock()  # guards everything below
        self._seen: NodePods | None = None
        self._seen_at = float("-inf")
        self._last_reported: Mapping[ClaimName, PodClaim] = {}
        self._silent_since: float | None = None  # since when the kubelet has not answered
        # The devices that the kubelet reported for a claim, and the claim that was then read.
        self._read: dict[ClaimName, tuple[tuple[HeldDevice, ...], ClaimWire]] = {}
        self._unlisted_since: float | None = None  # since when the claims could not be listed
        self._ask_again_at = float("-inf")  # when the pause ends for which the API server has asked
        self._has_reported = False  # whether the kubelet has reported a claim of any driver
        self._version_at = float("-inf")
        self._problem = ""

    @property
    def has_answered(self) -> bool:
        """Return whether the kubelet answered the last request."""
        return self._seen is not None

    def pods(self) -> NodePods:
        """Return what the kubelet reports now, or reported up to two seconds ago.

        Raises: NodeError("node.pod-resources").
        """
        with self._mutex:
            if self._seen is None or self._clock() - self._seen_at > FRESH_SECONDS:
                self._seen = None
                self._seen = self._kubelet.pods()
                self._seen_at, self._silent_since = self._clock(), None
                self._last_reported = self._seen.claims
                self._has_reported = self._has_reported or bool(self._last_reported)
            return self._seen

    def unknown(self, *, is_patient: bool = True, is_fresh: bool = True) -> tuple[ClaimWire, ...]:
        """Return the claims with devices of this driver on this node that the ledger does not know.

        If claims are listed at all, they are listed again with `is_fresh`; otherwise only a few of them are read again.

        Raises: NodeError("node.pod-resources") if the kubelet does not answer; with `is_patient`, only for the first
        ten seconds in which it does not. ApiError, likewise, if claims are listed and the list can't be read.
        """
        with self._mutex:
            known = self._known()
            found: dict[ClaimName, ClaimWire] = {}
            if self._listed:
                found.update(self._list(self._listed, is_fresh=is_fresh))
            reported = self._reported(is_patient=is_patient)
            wires = self._read_all({name: claim for name, claim in reported.items() if name not in known})
            for name, wire in wires.items():
                found[name] = with_devices(wire, name, reported[name].devices, self._node.driver)
            return tuple(wire for name, wire in found.items() if name not in known)

    def find(self, uid: str) -> ClaimWire | None:
        """Return the claim with this UID as the API server has it; None if no pod of this node has it.

        Raises: DriverError if that can't be determined.
        """
        with self._mutex:
            known, reported = self._known(), self._reported(is_patient=False)
            wires = [*self._read_all({name: claim for name, claim in reported.items() if name not in known}).values()]
            if self._listed:
                wires += self._listed.no_older_than(LIST_SECONDS).values()
            found = next((wire for wire in wires if uid_of(wire) == uid), None)
            if found is None and not self._listed and not self._reports_claims():
                raise NodeError(
                    "kubelet-silent",
                    "the kubelet reports no claims at all, so it is unknown whether this one still exists",
                    hint="enable its feature gate KubeletPodResourcesDynamicResources, or set takeover.listClaims",
                    retry=Retry.LATER,
                )
            return found

    def has_pod(self, record: ClaimRecord) -> bool:
        """Return whether the kubelet reports that a pod of this node has the claim; False if it does not answer."""
        try:
            return (record.namespace, record.name) in self.pods().claims
        except NodeError:
            return False

    def examine(self, records: Iterable[ClaimRecord]) -> None:
        """Check whether the kubelet reports claims at all: it should report those that were prepared in this boot."""
        prepared = [r for r in records if r.state == ClaimState.PREPARED and r.boot_id == self._node.boot_id and r.name]
        try:
            is_silent = bool(prepared) and not self.pods().claims and not self._reports_claims()
        except DriverError as error:
            self._set_problem(str(error))
            return
        self._set_problem(f"it reports no claims, but {len(prepared)} are prepared here" if is_silent else "")

    def problems(self) -> tuple[Problem, ...]:
        """Return the reason why the kubelet does not report claims as a problem of the node."""
        return (Problem(SILENT, "node", self._problem),) if self._problem else ()

    # What the kubelet reports

    def _known(self) -> frozenset[ClaimName]:
        """Return the names of the claims in the ledger; none if it can't be read, so that every claim is read."""
        try:
            return self._ledger.names()
        except LedgerError as error:
            log.warning("cannot read the claims in the ledger", extra=fields(code=error.code, err=str(error)))
            return frozenset()

    def _reported(self, *, is_patient: bool) -> Mapping[ClaimName, PodClaim]:
        try:
            return self.pods().claims
        except NodeError as error:
            now = self._clock()
            if self._silent_since is None:
                self._silent_since = now
            if not self._listed and (not is_patient or now - self._silent_since < PATIENCE_SECONDS):
                raise
            self._set_problem(str(error))
            return self._last_reported

    def _reports_claims(self) -> bool:
        """Return whether the kubelet reports claims, because it has done so before or its version always does.

        Raises: ApiError.
        """
        if not self._has_reported and self._clock() - self._version_at > VERSION_SECONDS:
            self._version_at = self._clock()
            info = (self._api.get_node(self._name).get("status") or {}).get("nodeInfo") or {}
            self._has_reported = minor_of(str(info.get("kubeletVersion"))) >= Since.KUBELET_LISTS_CLAIMS
        return self._has_reported

    def _set_problem(self, problem: str) -> None:
        if problem and not self._problem:
            hint = (
                "enable its feature gate KubeletPodResourcesDynamicResources, or set takeover.listClaims in the chart"
            )
            log.warning("the kubelet does not report claims", extra=fields(code=CODE, reason=problem, hint=hint))
        self._problem = problem

    # What the API server has

    def _list(self, listed: ListedClaims, *, is_fresh: bool) -> Mapping[ClaimName, ClaimWire]:
        """Return the listed claims; none if listing has failed for longer than the kubelet would be waited for.

        Raises: ApiError.
        """
        if not is_fresh:
            return listed.refreshed()
        try:
            found = listed.no_older_than(FRESH_SECONDS)
        except ApiError as error:
            now = self._clock()
            self._unlisted_since = now if self._unlisted_since is None else self._unlisted_since
            if error.status != _FORBIDDEN and now - self._unlisted_since < PATIENCE_SECONDS:
                raise
            log.warning("cannot list claims", extra=fields(code=error.code, err=str(error)))
            return {}
        self._unlisted_since = None
        return found

    def _read_all(self, reported: Mapping[ClaimName, PodClaim]) -> dict[ClaimName, ClaimWire]:
        """Read the claims that may be this driver's, each of them once; one without an answer is returned empty."""
        deadline = self._clock() + READ_SECONDS
        wires = {}
        for name, claim in reported.items():
            if not claim.devices and claim.is_prepared:  # other drivers have prepared it, for their own devices
                continue
            devices, wire = self._read.get(name, (None, {}))
            if devices != claim.devices:
                wire, is_answered = self._get(name, deadline)
                if is_answered:
                    self._read[name] = (claim.devices, wire)
            wires[name] = wire
        self._read = {name: read for name, read in self._read.items() if name in self._last_reported}
        return wires

    def _get(self, name: ClaimName, deadline: float) -> tuple[ClaimWire, bool]:
        """Read a claim if there is time left.

        Return the claim (empty if it does not exist, or without an answer), and whether there was an answer.
        """
        left = min(GET_SECONDS, deadline - self._clock())
        if left <= 0 or self._clock() < self._ask_again_at:
            return {}, False
        try:
            return self._api.get_claim(*name, timeout_s=left), True
        except ApiError as error:
            log.warning("claim not read", extra=fields(claim="/".join(name), code=error.code, err=str(error)))
            if error.retry_after_s:
                self._ask_again_at = self._clock() + error.retry_after_s * random.uniform(1.0, 1.5)  # noqa: S311 - jitter
            return {}, error.code == NOT_FOUND
