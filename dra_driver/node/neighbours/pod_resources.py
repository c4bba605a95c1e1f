"""PodResources: the kubelet's report about the pods on this node, read from its PodResources socket.

In: the socket's path, a driver's name. Out: the pods and claims of this node, and what its device plugins can hand out.
An answer is limited in size and time. The names of claims and of the driver's devices are checked, because they become
parts of paths; a name that Kubernetes would not allow makes the whole answer an error, because leaving it out could
hide a claim. The devices of other drivers are ignored. Neither the API server nor any file of the kubelet is read.

The kubelet leaves out pods that have ended, pods that were deleted by force, ordinary init containers, and claims that
no container names. A claim that is being prepared comes without devices. Whether a claim has admin access is not
reported. Source: kubelet podresources/v1 (server_v1.go, dra/manager.go), Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dra_driver.base.errors import ApiError, NodeError, Retry
from dra_driver.base.machine import Backoff
from dra_driver.base.names import is_dns_label
from dra_driver.base.wire import ClaimName, ClaimWire, name_of, results, uid_of
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import ClaimApi
from dra_driver.node._proto import pod_resources_v1_pb2 as messages

# Unix call: one gRPC call of another program's server on a unix socket, as the agent makes a few of each minute.


def call_once(
    path: Path, method: str, request: Any, *, seconds: float, max_bytes: int
) -> tuple[bytes, Mapping[str, str]]:
    """Call a method of the server that listens at `path`, on a connection of its own.

    Args:
        path: the socket.
        method: "/service/method".
        request: the message to send.
        seconds: how long the whole call may take.
        max_bytes: how long the answer may be.

    Returns: the answer's message as it came, and the text values among its trailing metadata.

    Raises: grpc.RpcError, whose text `fault_text` returns.
    """
    options = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.use_local_subchannel_pool", 1),  # a restarted server is found at once, whatever failed before
    )
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        function = channel.unary_unary(
            method, request_serializer=lambda message: message.SerializeToString(), response_deserializer=bytes
        )
        answer, call = function.with_call(request, timeout=seconds)
        return answer, {key: value for key, value in call.trailing_metadata() or () if isinstance(value, str)}


def fault_text(error: grpc.RpcError) -> str:
    """Return the code and the details of a failed call in one line of at most 300 characters."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    name = code().name if code else type(error).__name__
    return " ".join(f"{name}: {details() if details else error}"[:300].split())


SERVICE = "v1.PodResourcesLister"
ASK_SECONDS = 5.0
ANSWER_BYTES = 8 << 20
SHORT_BYTES = 1 << 20  # an answer up to this length takes at most 40 MiB of memory, whatever is in it
MAX_FIELDS = 200_000
MAX_PODS = 5_000
MAX_CLAIMS = 5_000
CODE = "node.pod-resources"

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_POOL = re.compile(r"[a-z0-9]([-a-z0-9./]*[a-z0-9])?")
_SHARE = re.compile(r"[0-9a-fA-F-]{1,64}")
_NAME_CHARACTERS = 253
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types of fields
_VARINT_BITS = 64


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that was prepared for a claim. A kubelet of 1.34 does not report the share id."""

    pool: str
    device: str
    share_id: str = ""


@dataclass(slots=True)
class PodClaim:
    """A claim of a pod on this node: its devices of this driver, and whether any driver has prepared it."""

    devices: tuple[HeldDevice, ...] = ()
    is_prepared: bool = False


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """A container that has a claim. A pod and its claims are in one namespace."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class NodePods:
    """The pods of this node by namespace and name, their claims, and the containers that use each claim."""

    pods: frozenset[tuple[str, str]]
    claims: Mapping[ClaimName, PodClaim]
    users: Mapping[ClaimName, tuple[ClaimUser, ...]] = field(default_factory=dict)


class PodResources:
    """A client of the kubelet's socket. All methods may be called from any thread."""

    def __init__(self, path: Path, driver: str) -> None:
        self._path, self._driver = path, driver

    def pods(self) -> NodePods:
        """Return this node's pods and their claims. Raises: NodeError("node.pod-resources")."""
        answer = self._ask("List", messages.ListPodResourcesRequest(), messages.ListPodResourcesResponse)
        if len(answer.pod_resources) > MAX_PODS:
            raise self._fault(f"it reports {len(answer.pod_resources)} pods, more than {MAX_PODS}")
        claims: dict[ClaimName, PodClaim] = {}
        users: dict[ClaimName, dict[ClaimUser, None]] = {}
        for user, used in _used(answer):
            name = (self._checked(used.claim_namespace, is_dns_label), self._checked(used.claim_name, _is_subdomain))
            claim = claims.setdefault(name, PodClaim())
            ours = (self._device(resource) for resource in used.claim_resources if resource.driver_name == self._driver)
            claim.devices = tuple(dict.fromkeys([*claim.devices, *ours]))
            claim.is_prepared |= bool(used.claim_resources)
            users.setdefault(name, {})[user] = None
            if len(claims) > MAX_CLAIMS:
                raise self._fault(f"it reports more than {MAX_CLAIMS} claims")
        pods = frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)
        return NodePods(pods, claims, {name: tuple(found) for name, found in users.items()})

    def allocatable(self) -> Mapping[str, int]:
        """Return the number of devices that device plugins offer, by resource name.

        Raises: NodeError("node.pod-resources").
        """
        request, answer = messages.AllocatableResourcesRequest(), messages.AllocatableResourcesResponse
        counts: Counter[str] = Counter()
        for entry in self._ask("GetAllocatableResources", request, answer).devices:
            counts[entry.resource_name] += len(entry.device_ids)
        return counts

    def _ask(self, method: str, request: Any, answer: Any) -> Any:
        path = f"/{SERVICE}/{method}"
        try:
            found, _ = call_once(self._path, path, request, seconds=ASK_SECONDS, max_bytes=ANSWER_BYTES)
            is_long = len(found) > SHORT_BYTES
            if is_long and _fields_in(found, answer.DESCRIPTOR, MAX_FIELDS) > MAX_FIELDS:
                raise self._fault(f"its answer has more than {MAX_FIELDS} fields")
            return answer.FromString(found)
        except grpc.RpcError as error:
            raise self._fault(fault_text(error)) from error
        except DecodeError as error:
            raise self._fault(" ".join(str(error)[:300].split())) from error

    def _device(self, found: messages.ClaimResource) -> HeldDevice:
        return HeldDevice(
            self._checked(found.pool_name, _is_pool),
            self._checked(found.device_name, is_dns_label),
            self._checked(found.share_id, _is_share) if found.share_id else "",
        )

    def _checked(self, text: str, is_valid: Any) -> str:
        if not is_valid(text):
            raise self._fault(f"it reports {text[:100]!r}, which is not a valid Kubernetes name")
        return text

    def _fault(self, what: str) -> NodeError:
        return NodeError(
            "pod-resources",
            f"the kubelet's PodResources at {self._path}: {what}",
            hint="mount <kubelet's folder>/pod-resources read-only at the same path, as the chart does",
            retry=Retry.LATER,
        )


def _used(answer: messages.ListPodResourcesResponse) -> Iterator[tuple[ClaimUser, messages.DynamicResource]]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            user = ClaimUser(pod.name, container.name)
            yield from ((user, used) for used in container.dynamic_resources)


def _is_subdomain(text: str) -> bool:
    return len(text) <= _NAME_CHARACTERS and _SUBDOMAIN.fullmatch(text) is not None


def _is_pool(text: str) -> bool:
    return len(text) <= _NAME_CHARACTERS and _POOL.fullmatch(text) is not None and ".." not in text


def _is_share(text: str) -> bool:
    return _SHARE.fullmatch(text) is not None


def with_devices(wire: ClaimWire, name: ClaimName, devices: tuple[HeldDevice, ...], driver: str) -> ClaimWire:
    """Return a claim's identity and devices: those in the claim, and those that only the kubelet reports."""
    stored = [result for result in results(wire) if result["driver"] == driver]
    known = {(result["pool"], result["device"]) for result in stored}
    reported = (
        {"driver": driver, "pool": d.pool, "device": d.device, **({"shareID": d.share_id} if d.share_id else {})}
        for d in devices
        if (d.pool, d.device) not in known
    )
    metadata = {"namespace": name[0], "name": name[1], "uid": uid_of(wire)}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": [*stored, *reported]}}}}


def _fields_in(text: bytes, kind: Any, at_most: int) -> int:
    """Return how many texts, bytes and messages, at all depths, an encoded message of the type `kind` has.

    `kind` is a descriptor. Each of these becomes an object when the message is decoded: a field of two bytes takes a
    hundred bytes of memory, so the length alone is no limit. Counting ends soon after `at_most`. Raises: DecodeError.
    Source: protobuf.dev, "Encoding".
    """
    return _count(text, (0, len(text)), kind, at_most)


def _count(text: bytes, within: tuple[int, int], kind: Any, at_most: int) -> int:
    at, end = within
    count = 0
    while at < end and count <= at_most:
        key, at = _varint(text, at, end)
        if key & 7 == _VARINT:
            _, at = _varint(text, at, end)
        elif key & 7 == _LENGTH:
            size, at = _varint(text, at, end)
            if size > end - at:
                raise DecodeError("a field is longer than its message")
            field = kind.fields_by_number.get(key >> 3)
            count += 1
            if field is not None and field.message_type is not None:
                count += _count(text, (at, at + size), field.message_type, at_most - count)
            at += size
        elif key & 7 in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if key & 7 == _EIGHT_BYTES else 4
        else:
            raise DecodeError("a field has an unknown type")
    return count


def _varint(text: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _VARINT_BITS:
        byte = text[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number does not end")


# Listed claims: this node's claims, taken from a list of all claims of the cluster, for kubelets that report none.

LIST_SECONDS = 300.0  # how old a list may be that decides whether a claim is gone
AT_ONCE = 5  # how many claims a call of `refreshed` reads
GET_SECONDS = 2.0


class ListedClaims:
    """The claims of one node. It is not thread-safe: its owner holds a lock during each call."""

    def __init__(
        self,
        listing: Callable[[], Iterable[ClaimWire]],
        api: ClaimApi,
        *,
        driver: str,
        pools: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listing, self._api, self._driver, self._pools, self._clock = listing, api, driver, pools, clock
        self._found: dict[ClaimName, ClaimWire] = {}
        self._listed_at = float("-inf")
        self._backoff = Backoff(base_s=1.0, max_s=60.0)
        self._again_at, self._fault = float("-inf"), ApiError("not-listed", "claims were not listed yet")

    def no_older_than(self, age_s: float) -> Mapping[ClaimName, ClaimWire]:
        """Return the claims from a list that is at most `age_s` seconds old. Raises: ApiError."""
        if self._clock() - self._listed_at > age_s:
            self._refuse_early()
            try:
                found = {name_of(wire): wire for wire in self._listing() if self._is_ours(wire)}
            except ApiError as error:
                self._fault, pause = error, self._backoff.next_s()
                self._again_at = self._clock() + error.retry_after_s + pause
                raise
            self._backoff.reset()
            self._found, self._listed_at = found, self._clock()
        return self._found

    def refreshed(self) -> Mapping[ClaimName, ClaimWire]:
        """Read a few of the listed claims again, and return those that are not known to be gone."""
        for name in list(self._found)[:AT_ONCE]:
            wire = self._found.pop(name)
            try:
                now = self._api.get_claim(*name, timeout_s=GET_SECONDS)
            except ApiError as error:
                if error.code == NOT_FOUND:
                    continue
            else:
                if uid_of(now) != uid_of(wire) or not self._is_ours(now):
                    continue
            self._found[name] = wire
        return self._found

    def _refuse_early(self) -> None:
        """Raise the last error again until the pause after it is over."""
        if self._clock() < self._again_at:
            raise self._fault

    def _is_ours(self, wire: ClaimWire) -> bool:
        return any(r.get("driver") == self._driver and r.get("pool") in self._pools for r in results(wire))
