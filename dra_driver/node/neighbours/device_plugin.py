"""Device plugin: detects whether one serves the GPUs of this node. While one does, this driver must not hand them out.

In: the devices that, as the kubelet reports, its device plugins can hand out, and its folder of device plugins. Out:
the reason to publish nothing, empty if there is no such plugin, and a callback when it changes. The check runs once a
minute. If the kubelet does not answer, the node object is read instead; if neither can be read, the check is repeated
sooner. Nothing may be published before the first answer. The plugin itself is never called: its socket is only
connected to and closed again.
Source: Kubernetes device plugins (PodResources GetAllocatableResources, extended resources in node.status.allocatable,
sockets in the kubelet's folder).
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base.errors import ApiError, NodeError
from dra_driver.base.flags import DEFAULT_VENDOR
from dra_driver.base.machine import Backoff
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import Wire, results
from dra_driver.hardware.facts import Problem
from dra_driver.hardware.vendors import load_vendor
from dra_driver.kube.paths import NodeApi

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
FIRST_SECONDS = (1.0, 30.0)  # the first and the longest pause before there is an answer
CONNECT_SECONDS = 1.0
CODE = "node.device-plugin"


class KubeletDevices(Protocol):
    """The question that this module asks the kubelet."""

    def allocatable(self) -> Mapping[str, int]:
        """Return the number of devices that device plugins offer, by resource name. Raises: NodeError."""


class DevicePluginWatch:
    """Keeps `reason` up to date; `changed` is called after the first answer and whenever the reason changes."""

    def __init__(
        self,
        kubelet: KubeletDevices,
        api: NodeApi,
        *,
        node: str,
        folder: Path,
        changed: Callable[[], None],
        vendor: str = DEFAULT_VENDOR.name,
        check_s: float = CHECK_SECONDS,
    ) -> None:
        self._kubelet, self._api, self._node, self._folder = kubelet, api, node, folder
        self._changed, self._check_s, self._vendor = changed, check_s, vendor
        self._loop = Loop(
            "device-plugin",
            self._turn,
            failure="check for a device plugin failed",
            fault_s=min(FIRST_SECONDS[1], check_s),
        )
        self._backoff = Backoff(base_s=FIRST_SECONDS[0], max_s=min(FIRST_SECONDS[1], check_s))
        self._reason: str | None = None  # None until there is an answer

    @property
    def is_known(self) -> bool:
        """Return whether there has been an answer; nothing may be published before that."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Return a sentence about the device plugin that serves the GPUs; "" if there is none."""
        return self._reason or ""

    def problems(self) -> tuple[Problem, ...]:
        """Return the reason as a problem of the node."""
        return (Problem(CODE, "node", self.reason),) if self.reason else ()

    def start(self) -> None:
        """Start to check in a thread."""
        self._loop.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread, waiting up to `timeout_s`; a thread that waits for the API server then ends on its own."""
        self._loop.stop(timeout_s)

    def _turn(self) -> float:
        least_s = 0.0
        try:
            self._check()
        except ApiError as error:  # the last answer stays in force
            least_s = error.retry_after_s
            keys = fields(code=error.code, err=str(error))
            log.warning("cannot determine whether a device plugin serves the GPUs", extra=keys)
        pause = self._check_s * random.uniform(0.75, 1.25) if self.is_known else self._backoff.next_s()  # noqa: S311
        return least_s + pause

    def _check(self) -> None:
        found = serving(self._offered(), self._folder, self._vendor)
        if found == self._reason:
            return
        was, self._reason = self._reason, found
        if found:
            hint = "remove the device plugin from this node; the agent checks again every minute"
            log.warning("no device is published", extra=fields(node=self._node, code=CODE, reason=found, hint=hint))
        elif was:
            log.info("no device plugin serves the GPUs any more", extra=fields(node=self._node))
        self._changed()

    def _offered(self) -> Mapping[str, str]:
        """Return the GPU resources that device plugins offer.

        Raises: ApiError if neither the kubelet nor the API server answers.
        """
        try:
            counts = self._kubelet.allocatable()
        except NodeError:
            return allocatable_gpus(self._api.get_node(self._node), self._vendor)
        resources = load_vendor(self._vendor).device_plugin.resources
        return {name: str(count) for name, count in counts.items() if name.startswith(resources) and count}


def serving(offered: Mapping[str, str], folder: Path, vendor: str = DEFAULT_VENDOR.name) -> str:
    """Return a sentence about the device plugin that serves this node's GPUs; "" if there is none.

    `offered` has the GPU resources that device plugins offer, with their counts.
    """
    if offered:
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(offered.items()))
        return f"a device plugin serves these GPUs (node allocatable {listed})"
    if sockets := live_sockets(folder, vendor):
        return f"a device plugin serves these GPUs (socket {sockets[0]})"
    return ""


def allocatable_gpus(node: Wire, vendor: str = DEFAULT_VENDOR.name) -> dict[str, str]:
    """Return the node's resources of a vendor's device plugins with a count above zero."""
    resources = load_vendor(vendor).device_plugin.resources
    offered = (node.get("status") or {}).get("allocatable") or {}
    return {name: str(count) for name, count in offered.items() if name.startswith(resources) and str(count) != "0"}


def live_sockets(folder: Path, vendor: str = DEFAULT_VENDOR.name) -> list[Path]:
    """Return the sockets of a vendor's device plugins on which a process listens; dead plugins leave theirs behind."""
    try:
        found = sorted(folder.glob(load_vendor(vendor).device_plugin.sockets))
    except OSError:
        return []
    return [path for path in found if _is_served(path)]


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionError, FileNotFoundError):
            return False
        except OSError:
            # The socket exists and can't be tested: it is better to offer no device than to offer one twice.
            return path.is_socket()
        return True


# NVIDIA checkpoint: the MIG partitions that NVIDIA's DRA driver made for claims, as it recorded them.

FILE = "checkpoint.json"
FILE_BYTES = 16 << 20
_STARTED, _COMPLETED = "PrepareStarted", "PrepareCompleted"
_NAME = re.compile(r"gpu-(\d{1,4})-mig-.+-(\d{1,4})-(\d{1,3})")


@dataclass(frozen=True, slots=True)
class CheckpointedPartition:
    """One partition of a claim: the minor of its GPU, the id of its GPU instance profile, and its first memory slice.

    `uuid` and `parent_uuid` are empty if the claim's preparation was not completed, because the partition was then not
    recorded.
    """

    minor: int
    profile_id: int
    start: int
    uuid: str = ""
    parent_uuid: str = ""

    @property
    def placement(self) -> tuple[int, int]:
        """Return the profile's id and the first memory slice."""
        return self.profile_id, self.start


@dataclass(frozen=True, slots=True)
class CheckpointedClaim:
    """One claim of the other driver; `name` is "namespace/name", or the UID if the name was not recorded."""

    uid: str
    name: str
    partitions: tuple[CheckpointedPartition, ...]


def read_checkpoint(path: Path, *, driver: str, boot_id: str) -> tuple[CheckpointedClaim, ...]:
    """Return the claims in a checkpoint of this boot; none if there is no such file or it has another form.

    Raises: ValueError if there is a file, but it can't be read, or it is damaged.
    """
    document, changed_at = _read(path)
    newest = _mapping(document.get("v2")) or _mapping(document.get("v1"))
    recorded = newest.get("nodeBootID")
    is_of_this_boot = recorded == boot_id if recorded else changed_at > _booted_at()
    if not is_of_this_boot:
        return ()
    claims = _mapping(newest.get("preparedClaims"))
    return tuple(_claim(uid, _mapping(claim), driver) for uid, claim in claims.items() if isinstance(uid, str))


def _claim(uid: str, claim: Mapping[str, Any], driver: str) -> CheckpointedClaim:
    name = f"{claim.get('namespace')}/{claim.get('name')}" if claim.get("name") else uid
    if claim.get("checkpointState", _COMPLETED) == _STARTED:
        names = (str(one["device"]) for one in results({"status": claim.get("status")}) if one["driver"] == driver)
        found = [partition for device in names if (partition := _named(device))]
    else:
        found = list(_concrete(claim))
    return CheckpointedClaim(uid, name, tuple(found))


def _concrete(claim: Mapping[str, Any]) -> Iterator[CheckpointedPartition]:
    """Yield the partitions that were recorded after they had been made.

    Releases that could not make partitions recorded `info` instead of `concrete`.
    """
    for group in _list(claim.get("preparedDevices")):
        for device in _list(_mapping(group).get("devices")):
            mig = _mapping(_mapping(device).get("mig"))
            made, name = _mapping(mig.get("concrete")), _mapping(mig.get("device")).get("DeviceName")
            uuid, parent_uuid = made.get("migUUID"), made.get("parentUUID")
            partition = _named(name) if isinstance(name, str) else None
            if partition and isinstance(uuid, str) and isinstance(parent_uuid, str) and uuid and parent_uuid:
                yield CheckpointedPartition(partition.minor, *partition.placement, uuid, parent_uuid)


def _named(device: str) -> CheckpointedPartition | None:
    match = _NAME.fullmatch(device)
    return CheckpointedPartition(int(match[1]), int(match[2]), int(match[3])) if match else None


def _read(path: Path) -> tuple[Mapping[str, Any], float]:
    """Return a file's JSON object and the time when the file was changed; an empty object if there is no such file.

    Raises: ValueError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}, 0.0
    except OSError as error:
        raise ValueError(str(error)) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
            raise ValueError(f"it is no regular file, or it has more than {FILE_BYTES >> 20} MiB")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return _mapping(json.loads(file.read(FILE_BYTES))), status.st_mtime
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    finally:
        os.close(handle)


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
