"""What the containers of a pod want, as requests of claims.

In: how many devices of which kind each container wants. Out: `Block`s, each a request: so many devices, and who uses
them. A container that had devices of its own has requests of its own. Init containers run before the others and used
their devices before them: so they are given the others' requests, split where they wanted fewer, and more only where
the others have too few.

Source: Kubernetes: kubelet's device manager (devices of init containers are used again by app containers);
resource/v1: at most 32 requests of a claim, and 32 devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.migrate.pods import Container
from dra_driver.migrate.resources import DeviceKind

MOST = 32  # requests of a claim, and devices of its allocation


@dataclass(frozen=True, slots=True)
class Want:
    """What one container wants of one resource."""

    container: Container
    resource: str
    kind: DeviceKind
    count: int


@dataclass(slots=True)
class Block:
    """Some devices of a kind, and the containers that use them: a request. `claim` counts claims from 0."""

    kind: DeviceKind
    count: int
    users: list[Container] = field(default_factory=list)
    is_free: bool = True  # an init container that ends before they start may use them
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
    """Cut what is more than one claim holds."""
    counts = [MOST] * (want.count // MOST) + ([want.count % MOST] if want.count % MOST else [])
    return [Block(want.kind, count, [want.container], is_free) for count in counts]


def _share(want: Want, blocks: list[Block]) -> None:
    """Give an init container devices that others use later."""
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
    """Name requests: after their container where there are several, else after the device."""
    taken: set[str] = set()
    containers = {block.users[0].name for block in blocks}
    for block in blocks:
        device = label(f"mig-{block.kind.profile}" if block.kind.is_partition and block.kind.profile else "gpu")
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
    """Make a DNS label of a text; a long one keeps its beginning and gets a sign of its own.

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


NAME_MAX = 57  # a DNS label's 63, less what `free` and templates may append


def free(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken: itself, or with a number."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
