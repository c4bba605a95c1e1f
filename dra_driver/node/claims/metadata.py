"""RequestMetadata: what a container can read about the devices of one request of its claim, and the files that say it.

In: the claim on this node and the name of the driver. Out: for each request a value that knows the path of
its file in the container, and renders the file: a stream of JSON objects, one for each version of the API, the newest
first, because a reader takes the first one that it knows.
Source: KEP-5304; k8s.io/dynamic-resource-allocation/api/metadata, v1beta1 (1.37) and v1alpha1 (1.36): fields and paths.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.base.errors import DEVICE_ATTRIBUTES_AND_CAPACITIES, InputError, PrepareError, Retry
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceTaint, Wire
from dra_driver.hardware.facts import Mount
from dra_driver.hardware.vendors import STANDARD
from dra_driver.node.claims.allocated import AllocatedDevice, ClaimedDevice, ClaimOnNode
from dra_driver.node.devices.describing import AttributeValue, attribute_wire

log = logging.getLogger(__name__)

GROUP = "metadata.resource.k8s.io"
VERSIONS = ("v1beta1", "v1alpha1")
CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
UUID = "uuid"
PCI_BUS_ID = f"{STANDARD}pciBusID"
_GENERATION = re.compile(
    rb'\{"kind":"DeviceMetadata","apiVersion":"[^"]*","metadata":\{"uid":"[^"]*","generation":(\d{1,18}),'
)


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device in the file. `made` is its name if Prepare makes it: its UUID is not known before."""

    pool: str
    name: str
    attributes: tuple[tuple[str, AttributeValue], ...]
    made: str = ""


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """The devices of one request of a claim. `carrier` names the device in the CDI file that gets the mount.

    `request` is `name/subrequest` if an alternative was chosen; paths contain only the name (`base_request`).
    `pod_claim_name` is the entry of the pod's `resourceClaims` for which the claim was made from a template.
    """

    driver: str
    namespace: str
    claim: str
    uid: str
    pod_claim_name: str
    request: str
    devices: tuple[DeviceEntry, ...]
    carrier: str

    @property
    def base_request(self) -> str:
        """The request's name without the chosen alternative."""
        return self.request.partition("/")[0]

    @property
    def container_path(self) -> str:
        """The path of the file in containers."""
        return container_path(self.driver, self.claim, self.pod_claim_name, self.base_request)

    def render(self, generation: int, uuids: Mapping[str, str]) -> bytes:
        """Return the file's content. `uuids` are those of the partitions that Prepare has made, by device name."""
        body = {
            "metadata": {"uid": self.uid, "generation": generation, "name": self.claim, "namespace": self.namespace},
            **({"podClaimName": self.pod_claim_name} if self.pod_claim_name else {}),
            "requests": [{"name": self.request, "devices": [self._device(entry, uuids) for entry in self.devices]}],
        }
        heads = ({"kind": "DeviceMetadata", "apiVersion": f"{GROUP}/{version}"} for version in VERSIONS)
        return "".join(f"{json.dumps({**head, **body}, separators=(',', ':'))}\n" for head in heads).encode()

    def _device(self, entry: DeviceEntry, uuids: Mapping[str, str]) -> Wire:
        uuid = uuids.get(entry.made)
        attributes = ((UUID, uuid), *entry.attributes) if uuid else entry.attributes
        most = sorted(attributes[:DEVICE_ATTRIBUTES_AND_CAPACITIES])
        return {
            "driver": self.driver,
            "pool": entry.pool,
            "name": entry.name,
            "attributes": {name: attribute_wire(value) for name, value in most},
        }


def container_path(driver: str, claim: str, pod_claim_name: str, base_request: str) -> str:
    """Return the path of a request's file in containers; it names a template's claim as the pod does."""
    kind, name = ("resourceclaimtemplates", pod_claim_name) if pod_claim_name else ("resourceclaims", claim)
    return f"{CONTAINER_FOLDER}/{kind}/{name}/{base_request}/{driver}-metadata.json"


def plan_metadata(on_node: ClaimOnNode, driver: str) -> tuple[RequestMetadata, ...]:
    """Return the metadata of each request of a claim; `driver` is the name of this driver."""
    claim, made = on_node.claim, on_node.made
    by_request: dict[str, list[ClaimedDevice]] = {}
    for claimed in on_node.results:
        by_request.setdefault(claimed.result.request, []).append(claimed)
    return tuple(
        RequestMetadata(
            driver=driver,
            namespace=claim.namespace,
            claim=claim.name,
            uid=claim.uid,
            pod_claim_name=claim.pod_claim_name,
            request=request,
            devices=tuple(_entry(result, made) for result in results),
            carrier=results[0].in_file,
        )
        for request, results in by_request.items()
    )


def _entry(one: ClaimedDevice, made: frozenset[str]) -> DeviceEntry:
    result, device = one.result, one.device
    place = {PCI_BUS_ID: device.gpu.pci_address} if device.gpu.pci_address else {}  # a channel has no PCI address
    attributes = tuple({**place, **device.attributes}.items())
    return DeviceEntry(result.pool, result.device, attributes, result.device if result.device in made else "")


def generation_of(content: bytes) -> int:
    """Return the generation of a file's content, or 0 if `render` did not make it."""
    found = _GENERATION.match(content)
    return int(found[1]) if found else 0


# Metadata reading: reads a file about devices as a program in a container would do by the API.

MAX_BYTES = 256 * 1024
_KNOWN = {f"{GROUP}/{version}" for version in VERSIONS}
_MAX_DEVICES = 128
_MAX_CHARS = 128  # the most characters of a value that are shown


@dataclass(frozen=True, slots=True)
class DescribedDevice:
    """A device of a request. `attributes` are in the order of the file, their values as text."""

    request: str
    driver: str
    pool: str
    name: str
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DescribedClaim:
    """One claim as one file describes it."""

    uid: str
    name: str
    pod_claim_name: str
    generation: int
    devices: tuple[DescribedDevice, ...]

    def path_of(self, device: DescribedDevice) -> str:
        """Return the path at which containers find the file that describes a device."""
        return container_path(device.driver, self.name, self.pod_claim_name, device.request.partition("/")[0])


def read_metadata(content: bytes) -> DescribedClaim:
    """Return the claim that a file describes. Raises: InputError("input.metadata") that says what is wrong."""
    if len(content) > MAX_BYTES:
        raise _fault(f"it is larger than {MAX_BYTES} bytes")
    try:
        found = next((wire for wire in _objects(content.decode()) if wire.get("apiVersion") in _KNOWN), None)
    except (ValueError, RecursionError) as error:
        raise _fault(f"it is not JSON: {str(error)[:_MAX_CHARS]}") from error
    if found is None or found.get("kind") != "DeviceMetadata":
        raise _fault(f"it has no DeviceMetadata of {GROUP}, {' or '.join(VERSIONS)}")
    try:
        meta = found["metadata"]
        return DescribedClaim(
            uid=_text(meta["uid"]),
            name=_text(meta["name"]),
            pod_claim_name=_text(found.get("podClaimName", "")),
            generation=int(meta.get("generation", 0)),
            devices=tuple(_devices(found))[:_MAX_DEVICES],
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _fault("a field is missing or has the wrong type") from error


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream. Raises: ValueError."""
    decoder, at = json.JSONDecoder(), _begin(text, 0)
    while at < len(text):
        found, end = decoder.raw_decode(text, at)
        if not isinstance(found, dict) or not isinstance(found.get("apiVersion"), str):
            raise ValueError("one of the values is not an API object")  # noqa: TRY004 - as json's own
        yield found
        at = _begin(text, end)


def _begin(text: str, at: int) -> int:
    """Return where the next object begins, after blanks."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _devices(found: dict[str, Any]) -> Iterator[DescribedDevice]:
    for request in found["requests"]:
        for device in request["devices"]:
            attributes = tuple((_text(name), _value(value)) for name, value in (device.get("attributes") or {}).items())
            driver, pool, name = _text(device["driver"]), _text(device["pool"]), _text(device["name"])
            yield DescribedDevice(_text(request["name"]), driver, pool, name, attributes)


def _value(value: dict[str, Any]) -> str:
    """Return an attribute's value as text; each has one type."""
    ((_, inner),) = value.items()
    return (str(inner).lower() if isinstance(inner, bool) else str(inner))[:_MAX_CHARS]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[: _MAX_CHARS * 2]


def _fault(why: str) -> InputError:
    return InputError("metadata", why)


# Device status: what a claim's status reports about its devices once they are prepared, in the API's form.

READY, HEALTHY = "Ready", "Healthy"
DATA_BYTES = 10 * 1024
MAX_NODES = 64  # device nodes of one device; a device has about five
_MAX_FAULTS = 4


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """What is known of one device of a prepared claim.

    `nodes` are paths in containers. `taints` are those of its faults; None where health is not watched. `sharing` is
    the strategy by which the device is shared, "" for one that is not.
    """

    uuid: str = ""
    driver_version: str = ""
    nodes: tuple[str, ...] = ()
    sharing: str = ""
    taints: tuple[DeviceTaint, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One entry. Each of `conditions` is a type, whether it holds, a reason and a message."""

    driver: str
    device: AllocatedDevice
    known: KnownDevice
    conditions: tuple[tuple[str, bool, str, str], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Derive the conditions from what is known."""
        found = [(READY, True, "Prepared", "the device is ready for the containers of the claim")]
        if self.known.taints is not None:
            found.append(_health(self.known.taints))
        object.__setattr__(self, "conditions", tuple(found))

    def wire(self, now: str, before: Wire) -> Wire:
        """Return the entry. A condition whose status is as in `before` keeps its transition time; others get `now`."""
        entry: Wire = {"driver": self.driver, "pool": self.device.pool, "device": self.device.device}
        if self.device.share_id:
            entry["shareID"] = self.device.share_id
        since = {
            condition.get("type"): (condition.get("status"), condition.get("lastTransitionTime"))
            for condition in before.get("conditions") or ()
            if isinstance(condition, dict)
        }
        entry["conditions"] = [
            {
                "type": kind,
                "status": str(holds),
                "reason": reason,
                "message": message,
                "lastTransitionTime": _since(since.get(kind), str(holds)) or now,
            }
            for kind, holds, reason, message in self.conditions
        ]
        entry["data"] = self._data()
        return entry

    def _data(self) -> Wire:
        known = self.known
        data: Wire = {"uuid": known.uuid, "driverVersion": known.driver_version, "sharing": known.sharing}
        data = {key: value for key, value in data.items() if value}
        if known.nodes:
            data["nodes"] = list(known.nodes[:MAX_NODES])
        return data if len(json.dumps(data)) <= DATA_BYTES else {"uuid": known.uuid}


def applied_statuses(statuses: Sequence[DeviceStatus], before: object, now: str) -> list[Wire]:
    """Return the entries to apply. `before` is the current `status.devices`, `now` a time as the API writes it."""
    there = {_key(entry): entry for entry in (before if isinstance(before, list) else ()) if isinstance(entry, dict)}
    return [status.wire(now, there.get(_key(status.wire(now, {})), {})) for status in statuses]


def own_entries(entries: object, driver: str) -> list[Wire]:
    """Return the entries of a driver in `status.devices`."""
    rows: Iterable[object] = entries if isinstance(entries, list) else ()
    return [entry for entry in rows if isinstance(entry, dict) and entry.get("driver") == driver]


def _health(taints: tuple[DeviceTaint, ...]) -> tuple[str, bool, str, str]:
    if not taints:
        return HEALTHY, True, "NoFault", "no fault is known"
    faults = ", ".join(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in taints[:_MAX_FAULTS])
    return HEALTHY, False, "Fault", faults


def _since(found: tuple[object, object] | None, status: str) -> str:
    return found[1] if found and found[0] == status and isinstance(found[1], str) else ""


def _key(entry: Wire) -> tuple[object, ...]:
    return tuple(entry.get(key) for key in ("driver", "pool", "device", "shareID"))


# Device metadata: files in which containers find facts about their devices, and the mounts that show them there.

_MAX_BYTES = 256 * 1024  # 32 devices with 32 attributes each need less than half of this, in both versions
_OPTIONS = ("ro", "bind", "nosuid", "nodev", "noexec")


class DeviceMetadata:
    """The metadata files of one driver's claims on a node. The caller of a method holds the claim's lock."""

    def __init__(self, cdi_folder: Path, driver: str) -> None:
        self._root = os.fspath(cdi_folder / f"{driver}-metadata")  # a string: Paths are slower

    def write(self, requests: tuple[RequestMetadata, ...], uuids: Mapping[str, str]) -> Iterator[tuple[str, Mount]]:
        """Write the facts about the devices into the files; yield the CDI device that mounts each file, and the mount.

        Idempotent. `uuids` are the UUIDs of the partitions that were made, by device name.

        Raises: PrepareError("prepare.metadata-write", LATER).
        """
        for request in requests:
            path = f"{self._root}/{request.uid}_{request.base_request}.json"
            there = _read(path)
            generation = generation_of(there)
            if not generation or there.rstrip() != request.render(generation, uuids).rstrip():
                try:
                    _put(path, request.render(generation + 1, uuids), len(there))
                except OSError as exc:
                    why = f"metadata of request {request.request!r} can't be written to {path}: {exc.strerror or exc}"
                    hint = (
                        "free space on the file system of the CDI folder, or start the agent with --device-metadata off"
                    )
                    raise PrepareError("metadata-write", why, hint=hint, retry=Retry.LATER) from exc
            yield request.carrier, Mount(path, request.container_path, _OPTIONS)

    def remove(self, uid: str) -> None:
        """Remove the files of a claim. Idempotent. One that can't be removed is logged, and left to the next sweep."""
        for name in self._names():
            if _owner(name) != uid:
                continue
            try:
                os.unlink(f"{self._root}/{name}")  # noqa: PTH108
            except FileNotFoundError:
                pass
            except OSError as exc:
                log.warning("metadata not removed", extra=fields(file=f"{self._root}/{name}", err=str(exc)))

    def owners(self) -> set[str]:
        """Return the UIDs of the claims that have files."""
        return {_owner(name) for name in self._names()}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root)  # noqa: PTH208
        except OSError:  # no file has been written yet
            return []


def _owner(name: str) -> str:
    """Return the UID of a file's claim; no request has an underscore in its name."""
    return name.rpartition("_")[0]


def _put(path: str, content: bytes, length: int) -> None:
    """Write the content into the file at `path`, which other processes may have open, and make it if it is missing.

    `length` is that of the present content: shorter content is filled up with newlines, so that the file never shrinks.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        fd = os.open(path, flags, 0o644)
    try:
        os.fchmod(fd, 0o644)
        content = content.ljust(length, b"\n")
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    """Return the content of a file; b"" if it does not exist or can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
