"""Work that the server's cost model does not charge for, bounded for each evaluation.

In: how many elements an operation is going to touch. Out: nothing, or a `CelAbort` once one evaluation has touched too
many. The server charges one unit for printing a list, for taking an element of joined lists and for comparing lists
that contain each other, however long they are, so that within its budget such a selector could run for minutes.
"""

from __future__ import annotations

import threading

from dra_driver.selectors.values.cancellation import check_cancelled
from dra_driver.selectors.values.values import COST_EXCEEDED, CelAbort

MAX_WORK = 2_000_000  # about a second
COPIED_AT_ONCE = 8  # this many elements are copied in the time in which one is compared or printed


class _ThreadWork(threading.local):
    elements = 0


_work = _ThreadWork()


def begin_work() -> None:
    """Begin another evaluation, or compilation, in this thread."""
    _work.elements = 0


def count_work(elements: int) -> None:
    """Count elements before they are touched. Raises: CelAbort if they are too many for one evaluation."""
    _work.elements += elements + 1
    check_cancelled()
    if _work.elements > MAX_WORK:
        raise CelAbort(COST_EXCEEDED)
