"""The devices that the containers of a pod request, as requests of claims.

In: how many devices of which kind each container wants. Out: `Block`s, each of which becomes one request: a number of
devices and the containers that use them. A container that had devices of its own gets requests of its own. Init
containers run before the other containers and used the same devices, so they share the requests of the others: a
request is split where an init container wanted fewer devices, and one is added only where the others have too few.

Source: Kubernetes: kubelet's device manager (app containers reuse the devices of init containers);
resource/v1: at most 32 requests in a claim, and 32 devices in its allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.pods import Container

MOST = 32  # the most requests in a claim, and the most devices in its allocation


@dataclass(frozen=True, slots=True)
class Want:
    """What one container requests of one resource."""

    container: Container
    resource: str
    kind: DeviceKind
    count: int


@dataclass(slots=True)
class Block:
    """Some devices of one kind and the containers that use them: one request. `claim` numbers the claims from 0."""

    kind: DeviceKind
    count: int
    users: list[Container] = field(default_factory=list)
    is_free: bool = True  # an init container may use them, because it ends before their users start
    name: str = ""
    claim: int = 0


def blocks_of(wants: list[Want]) -> list[Block]:
    """Return the requests of a pod, named and spread over claims."""
    blocks: list[Block] = []
    for want in wants:
        if not want.container.is_init:
            is_free = "initContainers" not in want.container.path
            blocks += _pieces(want, is_free=is_free)
    for want in wants:
        if want.container.is_init:
            _share(want, blocks)
    _name(blocks)
    _spread(blocks)
    return blocks


def _pieces(want: Want, *, is_free: bool) -> list[Block]:
    """Split a count into pieces that each fit into one claim."""
    counts = [MOST] * (want.count // MOST) + ([want.count % MOST] if want.count % MOST else [])
    return [Block(want.kind, count, [want.container], is_free) for count in counts]


def _share(want: Want, blocks: list[Block]) -> None:
    """Assign to an init container devices that others use after it, and add a request for what is missing."""
    missing = want.count
    free = [block for block in blocks if block.kind == want.kind and block.is_free]
    for block in sorted(free, key=lambda block: block.count != missing):
        if not missing:
            return
        if block.count > missing:
            blocks.insert(blocks.index(block) + 1, Block(block.kind, block.count - missing, list(block.users)))
            block.count = missing
        block.users.append(want.container)
        missing -= block.count
    if missing:
        blocks += _pieces(Want(want.container, want.resource, want.kind, missing), is_free=True)


def _name(blocks: list[Block]) -> None:
    """Assign names to the requests: those of the containers if there are several, otherwise that of the device."""
    taken: set[str] = set()
    containers = {block.users[0].name for block in blocks}
    for block in blocks:
        device = label(block.kind.stem)
        own = [other for other in blocks if other.users[0].name == block.users[0].name]
        stem = device if len(containers) == 1 else label(block.users[0].name)
        if len(containers) > 1 and len({other.kind for other in own}) > 1:
            stem = label(f"{stem}-{device}")
        block.name = free(stem, taken)
        taken.add(block.name)


def _spread(blocks: list[Block]) -> None:
    claim = requests = devices = 0
    for block in blocks:
        if requests + 1 > MOST or devices + block.count > MOST:
            claim, requests, devices = claim + 1, 0, 0
        block.claim = claim
        requests, devices = requests + 1, devices + block.count


def label(text: str) -> str:
    """Turn a text into a DNS label; a text that is too long keeps its beginning and ends in a hash of the whole.

    >>> label("mig-1g.10gb+me"), label("Worker_0")
    ('mig-1g-10gb-me', 'worker-0')
    """
    import hashlib  # noqa: PLC0415
    import re  # noqa: PLC0415

    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "gpu"
    if len(made) <= NAME_MAX:
        return made
    sign = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{made[: NAME_MAX - 9].rstrip('-')}-{sign}"


NAME_MAX = 57  # the 63 characters of a DNS label, less what `free` and the names of templates may append


def free(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken: `stem` itself, or `stem` with a number appended."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
