"""Foreign claims: devices that are still held under names which another driver of our name published on this node.

In: the claims of this node that are not in the ledger, the CDI files that the other driver left, and our devices. Out:
the devices to which those names refer, and which therefore must not be offered yet. The check runs before the first
slice, once more a minute later, after a claim was unprepared, and every minute while any device is held. No claim is
read twice from the API server. A claim that was given a device and never prepared does not count: Prepare refuses it,
because it is of another pool. If a name can't be resolved, every device is withheld: it is better to offer none than to
offer one twice. A partition's name that does not contain its placement refers to its whole GPU. Claims are never
changed.
Source: NVIDIA's DRA driver (`gpu-<minor>`, `gpu-<minor>-mig-<profile>-<profile id>-<start>`, in older releases
`gpu-<minor>-mig-<profile id>-<start>-<size>`; pool = node name).
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import ClaimWire, name_of, results, uid_of
from dra_driver.hardware.facts import Problem
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord


class UnknownClaims(Protocol):
    """The claims of this node that the ledger does not know."""

    def unknown(self, *, is_patient: bool = True, is_fresh: bool = True) -> tuple[ClaimWire, ...]:
        """Return these claims. Raises: DriverError if they can't be determined.

        Args:
            is_patient: whether to go on without the kubelet after it has not answered for a while.
            is_fresh: whether a list of the cluster's claims, where one is used, is read again.
        """


class AllocatedDevices:
    """The devices of this node's pool that are allocated to claims which the ledger does not know."""

    def __init__(self, claims: UnknownClaims, node: NodeIdentity) -> None:
        self._claims, self._node = claims, node

    def names(self, *, is_patient: bool = True) -> frozenset[str]:
        """Return the names of these devices. Raises: DriverError."""
        return frozenset(name for name, _ in self.forms(is_patient=is_patient))

    def forms(self, *, is_patient: bool = True) -> frozenset[tuple[str, bool]]:
        """Return these names, each with whether the device is allocated in shares. Raises: DriverError.

        A device that is allocated both as a whole and in shares is returned twice.
        """
        node = self._node
        found = (result for claim in self._claims.unknown(is_patient=is_patient) for result in results(claim))
        ours = (r for r in found if (r["driver"], r["pool"]) == (node.driver, node.pool))
        return frozenset((r["device"], bool(r.get("shareID"))) for r in ours)


# Leftovers: the CDI files that another driver of our name wrote for claims, and the devices that they hold.

log = logging.getLogger(__name__)

SUFFIX = ".yaml"
UNNAMED = "unknown"  # for a device that the file does not name; neither we nor NVIDIA's driver use this name
FILE_BYTES = 1 << 20
MAX_FILES = 1_000
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")


def read_leftovers(cdi_root: Path, driver: str) -> Mapping[str, tuple[str, ...]]:
    """Return the devices of each claim that another driver has prepared, by the claim's UID."""
    return {uid: _devices(path, uid) for uid, path in _files(cdi_root, driver)}


def remove_leftover(cdi_root: Path, file_name: str) -> bool:
    """Remove the other driver's file for a claim (our name, another ending). Return whether it existed."""
    leftover = (cdi_root / file_name).with_suffix(SUFFIX)
    try:
        leftover.unlink()
    except FileNotFoundError:
        return False
    except OSError as fault:
        log.warning("CDI file of another driver not removed", extra=fields(file=leftover.name, err=str(fault)))
        return False
    log.info("CDI file of another driver removed", extra=fields(file=leftover.name))
    return True


def _files(cdi_root: Path, driver: str) -> Iterator[tuple[str, Path]]:
    prefix = cdi.claim_file(driver, "").removesuffix(cdi.SUFFIX)
    try:
        found = sorted(entry.name for entry in os.scandir(cdi_root) if entry.name.startswith(prefix))
    except OSError:
        return
    left = [name for name in found if name.endswith(SUFFIX)]
    if len(left) > MAX_FILES:
        log.warning("too many CDI files of another driver", extra=fields(count=len(left)))
    for name in left[:MAX_FILES]:
        uid = name.removeprefix(prefix).removesuffix(SUFFIX)
        if _UID.fullmatch(uid):
            yield uid, cdi_root / name


def _devices(path: Path, uid: str) -> tuple[str, ...]:
    """Return the devices that a file names; `UNNAMED` if it names none."""
    named = re.findall(rf"\bname[\"']?\s*:\s*[\"']?{re.escape(uid)}-([a-z0-9-]{{1,63}})(?=[\"'\s,}}]|$)", _text(path))
    return tuple(dict.fromkeys(named)) or (UNNAMED,)


def _text(path: Path) -> str:
    """Return the content of a file; "" if it is not a regular file or can't be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return os.read(handle, FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


CHECK_SECONDS = 60.0
FIRST_SECONDS = 1.0  # between checks before the kubelet's first answer
ENDED_SECONDS = (
    3.0,
    6.0,
    12.0,
    24.0,
)  # between checks after an Unprepare, since the kubelet still lists the pod for a while
CODE = "node.foreign-claim"
_NAME = re.compile(r"gpu-(?P<minor>\d+)(?:-mig-(?P<place>.*))?")
# In the first form the profile is text, which contains a letter; in the second form it is a number.
_PLACES = (re.compile(r"\d+[a-z][a-z0-9-]*-(\d+)-(\d+)"), re.compile(r"(\d+)-(\d+)-\d+"))
_PASSTHROUGH = "gpu-vfio-"  # such a GPU is bound to VFIO, so it is none of our devices


class ReportedClaims(UnknownClaims, Protocol):
    """The claims of this node that are not in the ledger, as far as the kubelet reports them."""

    @property
    def has_answered(self) -> bool:
        """Return whether the kubelet answered the last request."""


class ForeignClaims:
    """The devices held under foreign names. Calls `changed` after the first answer and whenever they change."""

    def __init__(
        self,
        claims: ReportedClaims,
        cdi_root: Path,
        *,
        node: str,
        driver: str,
        ledger: Ledger,
        changed: Callable[[], None],
        check_s: float = CHECK_SECONDS,
    ) -> None:
        self._claims, self._cdi_root, self._node, self._driver = claims, cdi_root, node, driver
        self._ledger, self._changed, self._check_s = ledger, changed, check_s
        self._loop = Loop("foreign-claims", self._turn, failure="check for foreign claims failed", fault_s=check_s)
        # How many answers there were since the last reason to check, and how many reasons there were.
        self._checks, self._reasons = 0, 0
        self._soon: list[float] = []  # pauses before the next checks
        self._held: Mapping[str, str] | None = None  # foreign name → claim; None before the first answer
        # The UIDs of the claims that hold these names; "" for a claim that could not be read.
        self._uids: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        """Return whether there has been an answer; nothing may be published before that."""
        return self._held is not None and self._checks > 0

    def check_again(self) -> None:
        """Discard the last answer, because another driver of our name came or went, and may have left claims."""
        self._reasons += 1
        self._checks = 0
        self._loop.wake()

    def claim_ended(self) -> None:
        """Check soon, and several times, whether the claim that was unprepared had kept a device from being offered."""
        if self._held:
            self._soon = list(ENDED_SECONDS)
            self._loop.wake()

    def offer(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices that no foreign claim holds."""
        taken = resolve_names(self._held or {}, devices)
        return tuple(device for device in devices if device.name not in taken)

    def problems(self) -> tuple[Problem, ...]:
        """Return each held name as a problem."""
        return tuple(Problem(CODE, name, f"held by claim {claim}") for name, claim in (self._held or {}).items())

    def may_hold(self, uid: str) -> bool:
        """Return whether the claim with a UID may hold a device of this node, according to the last answer."""
        return not self.is_known or uid in self._uids or "" in self._uids or self._is_ours(uid)

    def start(self) -> None:
        """Start to check in a thread."""
        self._loop.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread, waiting up to `timeout_s`; a thread that waits for an answer then ends on its own."""
        self._loop.stop(timeout_s)

    def _turn(self) -> float:
        pause = self._check_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        pause = self._soon.pop(0) if self._soon else pause
        try:
            self._check()
        except DriverError as error:
            log.warning("cannot determine which claims this node has", extra=fields(code=error.code, err=str(error)))
            pause = pause if self.is_known else min(FIRST_SECONDS, self._check_s)
        is_settled = self._checks > 1 and not self._held and self._claims.has_answered
        return math.inf if is_settled else pause

    def _check(self) -> None:
        reasons = self._reasons
        unknown = self._claims.unknown(is_fresh=not self._checks)
        left = self._leftovers()
        found = _foreign(unknown, left, node=self._node, driver=self._driver)
        if reasons == self._reasons:  # otherwise the answer is older than the latest reason to check
            self._uids = frozenset(left).union(uid_of(claim) for claim in unknown if any(results(claim)))
            self._accept(found)

    def _leftovers(self) -> Mapping[str, tuple[str, ...]]:
        left = read_leftovers(self._cdi_root, self._driver)
        return {uid: devices for uid, devices in left.items() if not self._is_ours(uid)}

    def _is_ours(self, uid: str) -> bool:
        try:
            return self._ledger.get(uid) is not None
        except DriverError:
            return False  # which withholds the devices in the claim's file

    def _accept(self, found: Mapping[str, str]) -> None:
        is_first, self._checks = not self._checks, self._checks + 1
        before, self._held = self._held, found
        for name in found.keys() - (before or {}).keys():
            log.warning("a device is held under a foreign name", extra=fields(device=name, claim=found[name]))
        if before and not found:
            log.info("no device is held under a foreign name any more")
        if is_first or found != before:
            self._changed()


def _foreign(
    claims: Iterable[ClaimWire], leftovers: Mapping[str, tuple[str, ...]], *, node: str, driver: str
) -> dict[str, str]:
    """Return each foreign device name with a text that names all claims that hold it."""
    found: dict[str, dict[str, None]] = {}
    reported: set[tuple[str, str]] = (
        set()
    )  # (claim UID, device), also for devices with admin access, which are not held
    for claim in claims:
        for result in results(claim):
            if (result["driver"], result["pool"]) == (driver, node):
                reported.add((uid_of(claim), result["device"]))
                if not result.get("adminAccess"):
                    found.setdefault(result["device"], {})["/".join(name_of(claim))] = None
    for uid, devices in leftovers.items():
        for device in devices:
            if (uid, device) not in reported:
                found.setdefault(device, {})[f"(name unknown, UID {uid})"] = None
    return {name: ", ".join(by) for name, by in found.items() if not name.startswith(_PASSTHROUGH)}


def resolve_names(names: Iterable[str], devices: Sequence[Device]) -> frozenset[str]:
    """Return the names of our devices to which foreign names refer; a name that can't be resolved refers to all."""
    taken: set[str] = set()
    for name in names:
        match = _NAME.fullmatch(name)
        found = _same_gpu(match, devices) if match else list(devices)
        taken.update(device.name for device in found)
    return frozenset(taken)


def _same_gpu(match: re.Match[str], devices: Sequence[Device]) -> list[Device]:
    """Return the devices of the GPU in a foreign name; for a partition, only that one and those that overlap it."""
    of_gpu = [device for device in devices if device.gpu.minor == int(match["minor"])]
    place = next(filter(None, (known.fullmatch(match["place"] or "") for known in _PLACES)), None)
    if place is None:
        return of_gpu
    wanted = (int(place[1]), int(place[2]))
    same = [d for d in of_gpu if d.partition and (d.partition.gi_profile_id, d.partition.start) == wanted]
    return [*same, *(d for d in of_gpu if d.partition is None)] if same else of_gpu


# Old names: devices that prepared claims hold under names which this version does not publish.

OLD_NAMES_CODE = "node.renamed-device"
_OURS = re.compile(r"gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-9a-f](-.+)?")  # as model/names makes them
_NODE = re.compile(r"nvidia(\d+)")


def held_under_other_names(
    records: Iterable[ClaimRecord], devices: Sequence[Device], store: CdiStore, *, driver: str, boot_id: str
) -> Mapping[str, frozenset[str]]:
    """Return the names of our devices to which each name that we don't publish refers, by "name (claim)"."""
    known = {device.name for device in devices}
    found = {}
    for record in records:
        for name in record.owned_names() if record.boot_id in (boot_id, "") else ():
            if name not in known and not _OURS.fullmatch(name):
                minors = _minors(store, cdi.claim_file(driver, record.uid))
                behind = {d.name for d in devices if not minors or d.gpu.minor in minors}
                found[f"{name} ({record.full_name})"] = frozenset(behind)
    return found


def problems(held: Mapping[str, frozenset[str]]) -> tuple[Problem, ...]:
    """Return each held name as a problem."""
    return tuple(
        Problem(OLD_NAMES_CODE, name, "held by a claim under the name that another version published") for name in held
    )


def _minors(store: CdiStore, file: str) -> frozenset[int]:
    """Return the minors of the GPUs whose device nodes are in a claim's CDI file."""
    document: Mapping[str, Any] = store.read(file) or {}
    return frozenset(
        int(match[1])
        for device in document.get("devices") or ()
        for path in _paths((device.get("containerEdits") or {}).get("deviceNodes") or ())
        if (match := _NODE.fullmatch(PurePath(path).name))
    )


def _paths(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        yield str(node.get("path", ""))
