"""The seats of all viewers: one for those with equal rights, made when the first comes, ended when all have gone.

In: `Admitted`. Out: a `Seat`. Their number is bounded, because each holds what its viewers may see of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dra_driver.web.desk.line import DeskLine
from dra_driver.web.looking import UNSEEN_SECONDS
from dra_driver.web.lookups.commands import Commands
from dra_driver.web.lookups.lookups import UsageSource, ViewerLookups
from dra_driver.web.seat import Seat
from dra_driver.web.viewers.desk_maker import DeskMaker
from dra_driver.web.viewers.judges import Admitted

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0


@dataclass(slots=True)
class _Taken:
    seat: Seat
    task: asyncio.Task[None] | None
    used_at: float


class Seats:
    """At most `most` seats at the same time. All methods are called in the loop."""

    def __init__(
        self, maker: DeskMaker, usage: UsageSource, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._maker, self._usage, self._most, self._clock = maker, usage, most, clock
        self._taken: dict[Hashable, _Taken] = {}

    def of(self, admitted: Admitted) -> Seat | None:
        """Return the seat of a viewer; None if all seats are in use by others."""
        taken = self._taken.get(admitted.key)
        if taken is None:
            if len(self._taken) >= self._most and not self._free_one():
                return None
            taken = self._taken[admitted.key] = self._made(admitted)
        taken.used_at = self._clock()
        return taken.seat

    def _made(self, admitted: Admitted) -> _Taken:
        desk = DeskLine()
        desk.start_at(self._maker, "cluster")
        commands = Commands(admitted.kubeconfig)
        lookups = ViewerLookups(self._usage, (), admitted.rights, commands)
        seat = Seat(desk, admitted.access, lookups, lambda: self._end(admitted.key))
        desk.listen(seat.heard)
        task = asyncio.create_task(seat.looking.run()) if seat.looking else None
        log.info("seat made")
        return _Taken(seat, task, self._clock())

    def _free_one(self) -> bool:
        """End the seat that has been unused for longest; return whether there is one."""
        unseen = [(one.used_at, key) for key, one in self._taken.items() if not one.seat.notices.streams]
        if not unseen:
            return False
        self._end(min(unseen, key=lambda pair: pair[0])[1])
        return True

    def _end(self, key: Hashable) -> None:
        taken = self._taken.pop(key, None)
        if taken is not None:
            if taken.task is not None:
                taken.task.cancel()
            taken.seat.close()
            log.info("seat ended")

    async def tend(self) -> None:
        """End seats that have been unused for some minutes, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for key, one in list(self._taken.items()):
                if one.seat.notices.streams:
                    one.used_at = self._clock()
                elif self._clock() - one.used_at > UNSEEN_SECONDS:
                    self._end(key)

    def close(self) -> None:
        """End all."""
        for key in list(self._taken):
            self._end(key)
