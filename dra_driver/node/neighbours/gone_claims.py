"""Gone claims: determines whether a claim that holds a device has been deleted for good.

A device is taken from a claim only by Unprepare, or if the claim has been missing from the API for five minutes and no
process uses any device that it owns. If the hardware can't list processes, the device is never taken away. The five
minutes are boot time, recorded in the ledger, so they survive a restart of the agent but not of the node.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base.errors import ApiError, ClaimError, HardwareError, NodeError
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import ClaimWire
from dra_driver.hardware.port import Hardware, ProcessLister
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import ClaimApi
from dra_driver.node.claims.allocated import decode_claim
from dra_driver.node.devices.offering import CurrentInventory, NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.ledger.unreleased import boot_seconds

log = logging.getLogger(__name__)

GONE_SECONDS = 300.0
API_SECONDS = 2.0  # how long one request may take, because a call of the kubelet may be waiting for the answer


class ClaimsOfPods(Protocol):
    """The claims that this node's pods have."""

    def find(self, uid: str) -> ClaimWire | None:
        """Return the claim with a UID; None if no pod has it. Raises: DriverError if that can't be determined."""


class GoneClaims:
    """Determines whether claims are abandoned, and records in the ledger since when they have been gone."""

    def __init__(
        self,
        node: NodeIdentity,
        api: ClaimApi,
        ledger: Ledger,
        hardware: Hardware,
        inventory: CurrentInventory,
        *,
        claims: ClaimsOfPods,
        now: Callable[[], float] = boot_seconds,
    ) -> None:
        self._node, self._api, self._ledger, self._claims = node, api, ledger, claims
        self._missing: dict[str, float] = {}  # since when no pod has had a claim that the ledger does not know, by UID
        self._hardware, self._inventory, self._now = hardware, inventory, now

    def is_abandoned(self, record: ClaimRecord) -> bool:
        """Look for a claim, record in the ledger whether it exists, and return whether it is abandoned.

        If the API server or the kubelet does not answer, nothing is recorded and the claim is not abandoned.
        Raises: LedgerError.
        """
        try:
            is_gone = self._is_gone(record)
        except (ApiError, NodeError) as error:
            log.info(
                "cannot determine whether a claim still exists", extra=fields(claim=record.full_name, err=str(error))
            )
            return False
        since = record.gone_since if record.gone_boot == self._node.boot_id else None
        if not is_gone:
            if record.gone_since is not None:
                self._ledger.set_gone(record.uid, None, "")
            return False
        if since is None:
            log.info("claim no longer exists", extra=fields(claim=record.full_name, claim_uid=record.uid))
            self._ledger.set_gone(record.uid, self._now(), self._node.boot_id)
            return False
        return self._now() - since >= GONE_SECONDS and self._is_idle(record)

    def exists(self, uid: str) -> bool:
        """Return whether a claim of which only the UID is known may be in use.

        It may until no pod has had it for five minutes, because a kubelet that has just started does not know its pods
        yet. Raises: DriverError if that can't be determined.
        """
        if self._claims.find(uid) is not None:
            self._missing.pop(uid, None)
            return True
        if self._now() - self._missing.setdefault(uid, self._now()) < GONE_SECONDS:
            return True
        del self._missing[uid]
        return False

    def _is_gone(self, record: ClaimRecord) -> bool:
        if not record.name:
            return not self._complete(record)
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return True
            raise
        return _uid(wire) not in {record.uid, ""}

    def _complete(self, record: ClaimRecord) -> bool:
        """Look for a recovered claim, whose name was lost, among those of this node's pods, and complete its record.

        Return False if no pod has it.
        """
        found = self._claims.find(record.uid)
        if found is None:
            return False
        try:
            claim = decode_claim(found, driver=self._node.driver, uid=record.uid)
        except ClaimError as error:  # it was deallocated, but it holds its devices until it is unprepared
            log.info("recovered claim is no longer allocated", extra=fields(claim_uid=record.uid, err=str(error)))
            return True
        if record.owned_names() and not record.claim().is_of_same_devices(claim):
            # It was allocated again after it was prepared; its containers may still use what the CDI file names.
            log.info("recovered claim is allocated to other devices now", extra=fields(claim_uid=record.uid))
            return True
        self._ledger.complete(
            replace(
                record,
                namespace=claim.namespace,
                name=claim.name,
                allocation=record_of_claim(claim),
                state=ClaimState.PREPARED,
            ),
            claim,
        )
        log.info("recovered claim found in the API", extra=fields(claim=f"{claim.namespace}/{claim.name}"))
        return True

    def _is_idle(self, record: ClaimRecord) -> bool:
        """Return whether it is certain that no process uses any device that the claim owns."""
        if not isinstance(self._hardware, ProcessLister):
            return False
        by_name = self._inventory.current.by_name
        for name in record.owned_names():
            device = by_name.get(name)
            if device is None:
                return False
            try:
                processes = self._hardware.processes(device.gpu, device.partition)
            except HardwareError as error:
                log.warning("can't list processes", extra=fields(device=device.name, err=str(error)))
                return False
            if processes:
                log.info(
                    "claim no longer exists but its device is in use",
                    extra=fields(claim=record.full_name, device=device.name),
                )
                return False
        return True


def _uid(wire: dict[str, Any]) -> str:
    return str((wire.get("metadata") or {}).get("uid", ""))


# Host processes: short descriptions of processes by pid, program and pod.

_POD = re.compile(r"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})")
_BYTES = 16384
POD_LOGS = "1/root/var/log/pods"  # below /proc: the host's folder, seen through the host's first process


def described(pids: Iterable[int], proc: Path) -> tuple[str, ...]:
    """Return a description of each process: its pid, program and pod."""
    return tuple(_described(pid, proc) for pid in pids)


def _described(pid: int, proc: Path) -> str:
    program = "".join(one if one.isprintable() else "?" for one in _read(proc / str(pid) / "comm").strip())[:16]
    found = _POD.search(_read(proc / str(pid) / "cgroup"))
    pod = f" of pod {_pod_name(found[1].replace('_', '-').lower(), proc)}" if found else ""
    return f"{pid} ({program or 'unknown'}){pod}"


def _pod_name(uid: str, proc: Path) -> str:
    """Return a pod as NAMESPACE/NAME, or its UID if the host's folder of logs can't be read."""
    try:
        for folder in (proc / POD_LOGS).iterdir():
            if folder.name.endswith(f"_{uid}"):
                return "/".join(folder.name.split("_")[:2])
    except OSError:
        pass
    return f"UID {uid}"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
