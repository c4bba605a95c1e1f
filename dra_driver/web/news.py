"""News for the board: what watches of a cluster say, as messages from the console to the desk.

In: messages. Out: a board that is as new as they are. An object that does not have the shape of its kind is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.model.errors import DriverError
from dra_driver.model.wire import Wire
from dra_driver.views.access import UnseenObjects
from dra_driver.views.board.board import Board
from dra_driver.views.objects.shape_checker import ShapeChecker


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page of a list. `objects` is JSON: the desk makes its own objects of it."""

    kind: str
    objects: bytes
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that was added or modified, or is gone."""

    kind: str
    wire: Wire
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class KindHidden:
    """Objects that may not be read."""

    unseen: UnseenObjects


@dataclass(frozen=True, slots=True)
class ServerKnown:
    """The version of the cluster, and which gates' fields it keeps."""

    kubernetes: str
    kept: Mapping[str, bool]


BoardNews = PageRead | ObjectChanged | KindHidden | ServerKnown


def apply(board: Board, news: BoardNews) -> None:
    """Change the board as a message says."""
    match news:
        case PageRead():
            objects = [one for one in json.loads(news.objects) if _has_shape(news.kind, one)]
            board.page(news.kind, objects, is_first=news.is_first, is_last=news.is_last)
        case ObjectChanged(kind, wire, True):
            board.delete(kind, wire)
        case ObjectChanged(kind, wire, False):
            if _has_shape(kind, wire):
                board.change(kind, wire)
        case KindHidden(unseen):
            board.hide(unseen)
        case ServerKnown(kubernetes, kept):
            board.serve(kubernetes, kept)


def _has_shape(kind: str, wire: Wire) -> bool:
    try:
        ShapeChecker().check(kind, wire, "cluster")
    except DriverError:
        return False
    return True
