"""Competing agents: agents of other nodes or folders that were given this node's name and publish its pool too.

Each agent marks the slices that it writes with an annotation: the folder that it works from, since when, and where it
runs. In: planned writes. Out: those writes, marked; or an error, if an agent that has run for longer keeps changing
the same slices. "Keeps changing" means twice within ten seconds, between writes of ours. The agent that started later
then stops publishing until no slice of the other is left; the other continues. Instances that share a folder are not
competitors: they take turns by a lock. The writes of an unmarked agent (an older version) look like those of a user.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from dra_driver.base.errors import ApiError
from dra_driver.base.telemetry.logs import fields as log_fields
from dra_driver.base.wire import SliceWire, Wire
from dra_driver.kube.answers import NOT_FOUND, check_slice
from dra_driver.kube.api import REQUEST_SECONDS, KubeApi
from dra_driver.kube.paths import SLICES, slice_path
from dra_driver.kube.watch import Listing
from dra_driver.node.slices.layout import WritePlan
from dra_driver.node.slices.watched_slices import check_room_for

log = logging.getLogger(__name__)

WITHIN_SECONDS = 10.0
TIMES = 2
_MARK_CHARS = 1024
_STARTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass(frozen=True, slots=True)
class AgentMark:
    """Which agent wrote a slice. `folder_id` is the same for all instances that share a folder, and for no other.

    `started` is in UTC, in a form that sorts by time.
    """

    folder_id: str
    started: str
    host: str
    folder: str

    def started_before(self, other: AgentMark) -> bool:
        """Return whether this agent has run for longer; if both started together, both agents get the same order."""
        return (self.started, self.folder_id) < (other.started, other.folder_id)

    def __str__(self) -> str:
        return f"an agent on {self.host} (folder {self.folder}, running since {self.started})"


def mark_of(wire: SliceWire, key: str) -> AgentMark | None:
    """Return the mark of the agent that wrote a slice last; None if there is none or it can't be understood."""
    annotations = (wire.get("metadata") or {}).get("annotations")
    text = annotations.get(key) if isinstance(annotations, Mapping) else None
    if not isinstance(text, str) or len(text) > _MARK_CHARS:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = [field.name for field in fields(AgentMark)]
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in names):
        return None
    mark = AgentMark(**{name: found[name] for name in names})
    return mark if _STARTED.fullmatch(mark.started) and str(mark).isprintable() else None


class CompetingAgents:
    """The other agents that publish the pool of `me`. Only the thread that writes slices may use it."""

    def __init__(self, me: AgentMark, *, driver: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me, self._key, self._clock = me, f"{driver}/agent", clock
        self._text = json.dumps(asdict(me), separators=(",", ":"))
        self._has_written = False
        self._yields_to = ""  # the folder id of the agent that publishes instead of this one
        # The changes by other agents that were counted already, as name and version of the slice.
        self._counted: set[tuple[str, str]] = set()
        self._changed_at: dict[str, list[float]] = {}  # by the other's folder id

    def is_by_other_agent(self, wire: SliceWire) -> bool:
        """Return whether an agent of another folder wrote a slice last."""
        mark = mark_of(wire, self._key)
        return mark is not None and mark.folder_id != self._me.folder_id

    def marked(self, wire: SliceWire) -> SliceWire:
        """Return a slice with the mark of this agent."""
        self._has_written = True
        metadata = wire.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), self._key: self._text}
        return {**wire, "metadata": {**metadata, "annotations": annotations}}

    def admit(self, plan: WritePlan) -> None:
        """Return if the writes may be made.

        Raises: ApiError("api.another-agent") if an agent that started earlier keeps changing the same slices.
        """
        others = [mark for wire in (*plan.updates, *plan.deletes) if (mark := self._other_agent(wire))]
        publishing = next((mark for mark in others if mark.folder_id == self._yields_to), None)
        if publishing is not None:
            raise self._refusal(publishing)
        if len(plan):
            self._yields_to = ""
        for other in self._count((*plan.updates, *plan.deletes)):
            if other.started_before(self._me):
                self._yields_to = other.folder_id
                raise self._refusal(other)
            log.warning("another agent publishes this pool, and should stop", extra=log_fields(reason=str(other)))

    def _other_agent(self, wire: SliceWire) -> AgentMark | None:
        return mark_of(wire, self._key) if self.is_by_other_agent(wire) else None

    def _count(self, wires: Iterable[SliceWire]) -> list[AgentMark]:
        """Count the changes that others made after our writes, and return those who made too many."""
        now, changed, seen = self._clock(), {}, set()
        for wire in wires if self._has_written else ():
            mark, metadata = self._other_agent(wire), wire["metadata"]
            change = str(metadata.get("name")), str(metadata.get("resourceVersion"))
            if mark:
                seen.add(change)
                if change not in self._counted:
                    changed[mark.folder_id] = mark
        self._counted = seen
        found = []
        for folder_id, mark in changed.items():
            recent = [at for at in self._changed_at.get(folder_id, ()) if now - at <= WITHIN_SECONDS]
            self._changed_at[folder_id] = [*recent, now][-TIMES:]
            if len(self._changed_at[folder_id]) >= TIMES:
                found.append(mark)
        self._changed_at = {key: times for key, times in self._changed_at.items() if now - times[-1] <= WITHIN_SECONDS}
        return found

    def _refusal(self, other: AgentMark) -> ApiError:
        return ApiError(
            "another-agent",
            f"{other} publishes this node's devices and started earlier, so this agent publishes none",
            hint="give each node its own name (--node-name), or remove one of the two agents",
        )


# Writer: single writes of ResourceSlices, counted.


class SliceWriter:
    """Writes slices. `counts` holds the writes that the server accepted, by verb: create, update, delete.

    With `competitors` each slice is marked as this agent's.
    """

    def __init__(self, api: KubeApi, competitors: CompetingAgents | None = None) -> None:
        self._api, self._competitors = api, competitors
        self.counts: Counter[str] = Counter()

    def admit(self, plan: WritePlan) -> None:
        """Return if the writes of a plan may be made. Raises: ApiError("api.another-agent")."""
        if self._competitors:
            self._competitors.admit(plan)

    def is_by_other_agent(self, stored: SliceWire) -> bool:
        """Return whether an agent of another folder wrote a slice."""
        return self._competitors is not None and self._competitors.is_by_other_agent(stored)

    def read_all(self, field_selector: str) -> tuple[list[SliceWire], str]:
        """Return all slices of a selection, and the resourceVersion of the list. Raises: ApiError."""
        listing = Listing(self._api, SLICES, field_selector=field_selector, timeout_s=REQUEST_SECONDS)
        found: list[SliceWire] = []
        while not listing.is_done:
            page = listing.next_page()
            for wire in page.objects:
                check_slice(wire)
            found = [*([] if page.is_first else found), *page.objects]
            check_room_for(found)
        return found, page.resource_version

    def create(self, wire: SliceWire) -> SliceWire:
        """Create one slice. Raises: ApiError."""
        answer = self._checked("POST", SLICES, wire)
        self.counts["create"] += 1
        return answer

    def try_create(self, wire: SliceWire) -> SliceWire:
        """Return what the server would store if this slice were created, without storing it. Raises: ApiError."""
        answer = self._api.request("POST", SLICES, body=wire, query={"dryRun": "All"})
        check_slice(answer, is_stored=False)
        return answer

    def update(self, wire: SliceWire) -> SliceWire:
        """Replace one slice. Raises: ApiError("api.conflict") if it has changed since it was read."""
        answer = self._checked("PUT", slice_path(wire["metadata"]["name"]), wire)
        self.counts["update"] += 1
        return answer

    def delete(self, stored: SliceWire) -> None:
        """Delete one slice if it has not changed since it was read; a slice that is already gone is fine.

        Raises: ApiError("api.conflict") if it has changed.
        """
        metadata = stored["metadata"]
        options: Wire = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        }
        try:
            self._api.request("DELETE", slice_path(metadata["name"]), body=options)
        except ApiError as err:
            if err.code != NOT_FOUND:
                raise
            return
        self.counts["delete"] += 1

    def _checked(self, method: str, path: str, wire: SliceWire) -> SliceWire:
        body = self._competitors.marked(wire) if self._competitors else wire
        answer = self._api.request(method, path, body=body)
        check_slice(answer)
        return answer
