"""Updates for the board: what the watches of a cluster report, as messages from the console to the worker."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.model.wire import Wire
from dra_driver.views.access import UnseenObjects


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page of the list of one namespace, or of all ("").

    `objects` is JSON, from which the worker makes its own objects.
    """

    kind: str
    objects: bytes
    is_first: bool
    is_last: bool
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that was added or modified, or is gone."""

    kind: str
    wire: Wire
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class KindUnreadable:
    """Objects that may not be read."""

    unseen: UnseenObjects


@dataclass(frozen=True, slots=True)
class VersionRead:
    """The version of the cluster."""

    kubernetes: str


BoardUpdate = PageRead | ObjectChanged | KindUnreadable | VersionRead
