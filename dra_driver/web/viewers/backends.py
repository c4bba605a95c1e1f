"""The backends of all viewers. Viewers with equal rights share one.

In: `AdmittedViewer`. Out: a `Backend`. Their number is bounded, because each holds all that its viewers may see of the
cluster. If there is no room for another, one that no page looks at ends, or else one of a user who holds several more
than the one who comes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dra_driver.web.backend import Backend
from dra_driver.web.lookups.commands import Commands
from dra_driver.web.lookups.lookups import UsageSource, ViewerLookups
from dra_driver.web.on_demand_reading import UNSEEN_SECONDS
from dra_driver.web.viewers.fairness import owner_of_user, to_give_up
from dra_driver.web.viewers.rights_resolvers import AdmittedViewer
from dra_driver.web.work_budget import WorkBudget
from dra_driver.web.worker.client import WorkerClient
from dra_driver.web.worker.worker_spawner import WorkerSpawner

log = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0


@dataclass(slots=True)
class _RunningBackend:
    backend: Backend
    task: asyncio.Task[None] | None
    used_at: float
    admitted: AdmittedViewer
    commands: Commands

    @property
    def owner(self) -> str:
        """To whom the backend is counted: to the user for whom it was started."""
        return owner_of_user(self.admitted.user)

    def use_token_of(self, admitted: AdmittedViewer) -> None:
        """Go on with the token of a viewer with equal rights, whom the cluster has accepted later."""
        mine, theirs = self.admitted.access.token, admitted.access.token
        if mine is not None and theirs is not None:
            mine.replace_with(theirs)
            self.commands.kubeconfig = admitted.kubeconfig


class Backends:
    """At most `maximum` backends at the same time. Call all methods in the event loop."""

    def __init__(
        self,
        spawner: WorkerSpawner,
        usage: UsageSource,
        maximum: int,
        budget: WorkBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawner, self._usage, self._maximum, self._clock = spawner, usage, maximum, clock
        self._budget = budget
        self._running: dict[Hashable, _RunningBackend] = {}

    def of(self, admitted: AdmittedViewer) -> Backend | None:
        """Return the backend of a viewer; None if all backends are in use by others."""
        running = self._running.get(admitted.key)
        if running is None:
            if len(self._running) >= self._maximum and not self._free_one(owner_of_user(admitted.user)):
                return None
            running = self._running[admitted.key] = self._made(admitted)
        running.use_token_of(admitted)
        running.used_at = self._clock()
        return running.backend

    def _made(self, admitted: AdmittedViewer) -> _RunningBackend:
        worker = WorkerClient(self._budget)
        worker.start_by_spawner(self._spawner, "cluster")
        commands = Commands(self._budget, admitted.kubeconfig)
        lookups = ViewerLookups(self._usage, commands, rights=admitted.rights)
        backend = Backend(worker, admitted.access, lookups, lambda: self._end(admitted.key))
        worker.listen(backend.on_message)
        task = asyncio.create_task(backend.reading.run()) if backend.reading else None
        log.info("backend started")
        return _RunningBackend(backend, task, self._clock(), admitted, commands)

    def _free_one(self, newcomer: str) -> bool:
        """End a backend to make room for one of `newcomer`; return whether there was one to end."""
        counts = Counter(one.owner for one in self._running.values())
        held = {key: (one.owner, one.used_at) for key, one in self._running.items()}
        unseen = {key: held[key] for key, one in self._running.items() if not one.backend.notices.streams}
        more = {key: pair for key, pair in held.items() if counts[pair[0]] > counts[newcomer] + 1}
        if not (given_up := unseen or more):
            return False
        self._end(to_give_up(given_up))
        return True

    def _end(self, key: Hashable) -> None:
        running = self._running.pop(key, None)
        if running is not None:
            if running.task is not None:
                running.task.cancel()
            running.backend.close()
            log.info("backend ended")

    async def end_unused(self) -> None:
        """End backends that have been unused for some minutes, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for key, one in list(self._running.items()):
                if one.backend.notices.streams:
                    one.used_at = self._clock()
                elif self._clock() - one.used_at > UNSEEN_SECONDS:
                    self._end(key)

    def close(self) -> None:
        """End all backends."""
        for key in list(self._running):
            self._end(key)
