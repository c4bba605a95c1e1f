"""Watch events: what a watch yields, and the events in the lines of the server's stream."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.base.wire import Wire
from dra_driver.kube.answers import parse

# Watch events: what a watch yields, and the events in the lines of the server's stream.

EVENT_MEMORY = 16 << 20  # of one parsed event


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of everything that exists, as of `resource_version`.

    `is_first`: forget the pages before it. `is_last`: an object in none of the pages since the first is gone.
    """

    objects: tuple[Wire, ...]
    resource_version: str
    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Changed:
    """One object was added or modified."""

    wire: Wire


@dataclass(frozen=True, slots=True)
class Deleted:
    """One object is gone; `wire` is its last state."""

    wire: Wire


@dataclass(frozen=True, slots=True)
class Connected:
    """A stream was opened: the server may not be the same as before, or may have a newer version.

    `is_renewal`: the last stream ended when it was asked to, so there is no sign of such a change.
    """

    is_renewal: bool = False


Event = Listed | Changed | Deleted | Connected


def read_line(line: bytes) -> tuple[str, Wire]:
    """Return the type and the object of the event in a line. Raises: ValueError for an invalid one."""
    event = parse(line, memory=EVENT_MEMORY)
    if not isinstance(event, dict):
        raise ValueError("it is not an object")  # noqa: TRY004  one kind of error for every invalid event
    kind, wire = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(wire, dict):
        raise ValueError("it has no type, or no object")  # noqa: TRY004
    metadata = wire.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if kind != "ERROR" and not (isinstance(version, str) and version):
        raise ValueError("its object has no resourceVersion")
    return kind, wire
