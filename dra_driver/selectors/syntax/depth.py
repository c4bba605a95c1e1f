"""Room on the stack for deep expressions.

The grammar bounds how deep an expression can nest, but that bound times the frames per level exceeds Python's default
recursion limit. Frames of Python functions live on the heap, so it is safe to raise the limit for the time of one call.
It is raised only for expressions that need it.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

_SMALL = 300  # frames that always fit, however deep the caller is
_MARGIN = 2000  # frames for the caller and for the leaves


class _Shared:
    """The number of calls that need the raised limit, and the limit before the first of them."""

    lock = threading.Lock()
    holders = 0
    before = 0


def needs_room(frames: int) -> bool:
    """Return whether this many frames might exceed the default limit."""
    return frames > _SMALL


class room_for:  # noqa: N801  (reads as a statement: `with room_for(frames)`)
    """Make room for this many frames while the block runs."""

    __slots__ = ("_frames",)

    def __init__(self, frames: int) -> None:
        self._frames = frames

    def __enter__(self) -> None:
        if not needs_room(self._frames):
            return
        with _Shared.lock:
            if _Shared.holders == 0:
                _Shared.before = sys.getrecursionlimit()
            _Shared.holders += 1
            sys.setrecursionlimit(max(sys.getrecursionlimit(), _Shared.before + _MARGIN + self._frames))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not needs_room(self._frames):
            return
        with _Shared.lock:
            _Shared.holders -= 1
            if _Shared.holders == 0:
                sys.setrecursionlimit(_Shared.before)
