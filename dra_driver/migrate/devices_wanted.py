"""The devices that the containers of a pod request, as requests of claims.

In: how many devices of which kind each container wants. Out: `DeviceRequest`s: a number of devices, and the containers
that use them. A container that had devices of its own gets requests of its own. Init containers run before the other
containers and used the same devices, so they share the requests of the others: a request is split if an init container
wanted fewer devices, and one is added only if the others have too few.

Source: Kubernetes: kubelet's device manager (app containers reuse the devices of init containers);
resource/v1: at most 32 requests in a claim, and 32 devices in its allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.pods import Container

MAX = 32  # the most requests in a claim, and the most devices in its allocation


@dataclass(frozen=True, slots=True)
class WantedDevices:
    """The number of devices that one container requests of one resource."""

    container: Container
    resource: str
    kind: DeviceKind
    count: int


@dataclass(slots=True)
class DeviceRequest:
    """One request: devices of one kind, and the containers that use them. `claim` numbers the claims from 0."""

    kind: DeviceKind
    count: int
    users: list[Container] = field(default_factory=list)
    is_free: bool = True  # an init container may use them, because it ends before their users start
    name: str = ""
    claim: int = 0


def requests_of(wants: list[WantedDevices]) -> list[DeviceRequest]:
    """Return the requests of a pod, named and spread over claims."""
    requests: list[DeviceRequest] = []
    for want in wants:
        if not want.container.is_init:
            is_free = "initContainers" not in want.container.path
            requests += _pieces(want, is_free=is_free)
    for want in wants:
        if want.container.is_init:
            _share(want, requests)
    _name(requests)
    _spread(requests)
    return requests


def _pieces(want: WantedDevices, *, is_free: bool) -> list[DeviceRequest]:
    """Split a count into pieces that each fit into one claim."""
    counts = [MAX] * (want.count // MAX) + ([want.count % MAX] if want.count % MAX else [])
    return [DeviceRequest(want.kind, count, [want.container], is_free) for count in counts]


def _share(want: WantedDevices, requests: list[DeviceRequest]) -> None:
    """Assign to an init container devices that others use after it, and add a request for what is missing."""
    missing = want.count
    free = [request for request in requests if request.kind == want.kind and request.is_free]
    for request in sorted(free, key=lambda request: request.count != missing):
        if not missing:
            return
        if request.count > missing:
            requests.insert(
                requests.index(request) + 1, DeviceRequest(request.kind, request.count - missing, list(request.users))
            )
            request.count = missing
        request.users.append(want.container)
        missing -= request.count
    if missing:
        requests += _pieces(WantedDevices(want.container, want.resource, want.kind, missing), is_free=True)


def _name(requests: list[DeviceRequest]) -> None:
    """Assign names to the requests: those of the containers if there are several, otherwise that of the device."""
    taken: set[str] = set()
    containers = {request.users[0].name for request in requests}
    for request in requests:
        device = label(request.kind.stem)
        own = [other for other in requests if other.users[0].name == request.users[0].name]
        stem = device if len(containers) == 1 else label(request.users[0].name)
        if len(containers) > 1 and len({other.kind for other in own}) > 1:
            stem = label(f"{stem}-{device}")
        request.name = free_name(stem, taken)
        taken.add(request.name)


def _spread(requests: list[DeviceRequest]) -> None:
    claim = count = devices = 0
    for request in requests:
        if count + 1 > MAX or devices + request.count > MAX:
            claim, count, devices = claim + 1, 0, 0
        request.claim = claim
        count, devices = count + 1, devices + request.count


def label(text: str) -> str:
    """Turn a text into a DNS label; a text that is too long keeps its beginning and ends in a hash of the whole.

    >>> label("mig-1g.10gb+me"), label("Worker_0")
    ('mig-1g-10gb-me', 'worker-0')
    """
    import hashlib  # noqa: PLC0415
    import re  # noqa: PLC0415

    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "gpu"
    if len(made) <= MAX_NAME:
        return made
    sign = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{made[: MAX_NAME - 9].rstrip('-')}-{sign}"


MAX_NAME = 57  # the 63 characters of a DNS label, less what `free_name` and the names of templates may append


def free_name(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken: `stem` itself, or `stem` with a number appended."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
