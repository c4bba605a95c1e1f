"""Writer: single writes of ResourceSlices, counted.

In: objects of a `WritePlan`. Out: the server's answers. Which slices to write is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter

from dra_driver.controller.competing_agents import CompetingAgents
from dra_driver.controller.diff import WritePlan
from dra_driver.controller.slice_room import check_room_for
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import REQUEST_SECONDS, KubeApi
from dra_driver.kube.pages import Listing
from dra_driver.kube.paths import SLICES, slice_path
from dra_driver.kube.shapes import check_slice
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import SliceWire, Wire


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
