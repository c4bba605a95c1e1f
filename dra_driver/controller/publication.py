"""Publication: the attempts to publish one pool, and what is known of their success.

In: that the offers changed, that slices changed, how each attempt ended. Out: when the next attempt is due, whether the
server holds what was offered last, and what is wrong otherwise. All methods but `attempt` need the lock `changed`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Condition

from dra_driver.controller.pace import WritePace, is_refusal
from dra_driver.controller.pool_sync import NotYetError, StoppedError
from dra_driver.controller.schedule import Schedule
from dra_driver.kube.events import NodeEvents
from dra_driver.model.errors import ApiError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

EVENT_QUIET_SECONDS = 3600.0


class Publication:
    """The state of publishing a pool. `attempt` belongs to the writing thread, and is called without the lock."""

    def __init__(
        self, pool: str, schedule: Schedule, pace: WritePace, events: RefusalEvents, *, changed: Condition
    ) -> None:
        self._pool, self._schedule, self._pace, self._events, self._changed = pool, schedule, pace, events, changed
        # How often the offers changed, and up to which change they were asked for, and are published.
        self._wanted, self._asked, self._done = 0, 0, 0
        self._is_published = False
        self.fault: ApiError | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anything was offered yet."""
        return self._wanted > 0

    @property
    def is_published(self) -> bool:
        """Whether the server holds what was offered at the last attempt."""
        return self._is_published

    @property
    def is_current(self) -> bool:
        """Whether the server holds what was offered last."""
        return self._is_published and self._done == self._wanted

    def start(self) -> None:
        """Begin anew: compare what is stored with what is offered."""
        self._is_published, self.fault = False, None
        self._pace.restart()
        self._schedule.begin()
        self._schedule.at_once()

    def want(self) -> None:
        """Record that the offers may have changed."""
        self._wanted += 1
        self._schedule.at_once()

    def asking(self) -> None:
        """Record that the offers are asked for now."""
        self._schedule.begin()
        self._asked = self._wanted

    def disturbed(self) -> None:
        """Record that slices changed."""
        self._is_published = False
        self._schedule.disturbed()

    def due_s(self, questions: list[float]) -> float | None:
        """Return the seconds until the next attempt; None if none is due.

        `questions`: the seconds until the server is to be asked about something again; after a failure these wait.
        """
        work_s = self._schedule.wait_s()
        due = [max(at, self._pace.retry_s) for at in questions] + ([] if work_s is None else [work_s])
        return min(due, default=None)

    def attempt(self, run: Callable[[], int], figures: Callable[[], Mapping[str, str | int]]) -> bool:
        """Make an attempt, which returns the number of its writes; return False if the publisher is stopping.

        `figures` returns what the log line about a success says of the pool.
        """
        started = time.monotonic()
        try:
            writes = run()
        except StoppedError:
            return False
        except NotYetError as not_yet:
            self._postponed(not_yet.seconds)
        except ApiError as err:
            self._failed(err)
        except Exception as err:
            log.exception("publishing failed", extra=fields(pool=self._pool))
            self._failed(ApiError("bug", f"publishing failed: {err!r}", retry=Retry.LATER))
        else:
            self._succeeded()
            keys = fields(**figures(), count=writes, took_ms=round((time.monotonic() - started) * 1000))
            log.log(logging.INFO if writes else logging.DEBUG, "slices published", extra=keys)
        return True

    def _postponed(self, seconds: float) -> None:
        with self._changed:
            self._is_published = False
            # Without a failed attempt that waits for its time, another client has undone what was written.
            self.fault = fault = self.fault or _overwritten(self._pool, seconds)
            self._schedule.within(seconds)
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=fault.code, err=str(fault), seconds=round(seconds))
        log.info("slices differ, and are written later", extra=keys)

    def _failed(self, err: ApiError) -> None:
        with self._changed:
            self.fault, self._is_published = err, False
            delay = self._pace.failed(err)
            if delay is not None:
                self._schedule.within(delay)
            attempt = self._pace.attempts
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=err.code, err=err.message, hint=err.hint, attempt=attempt)
        log.log(logging.INFO if err.status in (404, 409) else logging.WARNING, "slices not published", extra=keys)
        self._events.report(err)

    def _succeeded(self) -> None:
        with self._changed:
            self.fault, self._done = None, self._asked
            self._is_published = self._asked == self._wanted and not self._schedule.is_disturbed
            self._changed.notify_all()


class RefusalEvents:
    """Sends at most one Event an hour about the node for each cause (the error's code) why its slices are refused."""

    def __init__(self, events: NodeEvents, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._events, self._clock = events, clock
        self._sent_at: dict[str, float] = {}

    def report(self, error: ApiError) -> None:
        """Send an Event about a refusal, unless one with the same cause was sent within an hour."""
        now = self._clock()
        if not is_refusal(error) or now - self._sent_at.get(error.code, float("-inf")) < EVENT_QUIET_SECONDS:
            return
        self._sent_at[error.code] = now
        # The reason has the cause in it, because Events of one reason are held back for some time.
        cause = "".join(word.capitalize() for word in error.code.removeprefix("api.").split("-"))
        self._events.send(f"SlicesRefused{cause}", f"devices not published, tried again later: {error}", "Warning")


def _overwritten(pool: str, seconds: float) -> ApiError:
    return ApiError(
        "overwritten",
        f"another client keeps changing the slices of pool {pool}; they are written again in {seconds:.0f} s",
        hint="find it with: kubectl get resourceslices -o yaml --show-managed-fields",
        retry=Retry.LATER,
    )
