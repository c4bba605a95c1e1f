"""Paging: lists in pages, as a real API server sends them.

In: `limit` and `continue` of a request. Out: some of the objects, and the token for the rest. All pages of one list
come from one snapshot of the objects, and the snapshots of the last few lists are kept. When a snapshot has been
dropped (by `Store.compact`, or because of too many other lists), its tokens are answered with 410 and with another
token, which continues after the last object in the present state. With resourceVersion=0 a limit is ignored.
Source: Kubernetes API concepts, "Retrieving large results sets in chunks".
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_driver.embedded.api.kinds import ApiKind
from dra_driver.embedded.api.store import Key, Store, Stored
from dra_driver.embedded.api_rules.refusals import bad_request, list_expired
from dra_driver.model.wire import Wire

_MAX_SNAPSHOTS = 8
_NOW = -1  # the revision in a token that continues with the present state


@dataclass(frozen=True, slots=True)
class ListPage:
    """Some objects, the revision of the list, and the token for the next page ("" on the last page)."""

    objects: list[Stored]
    revision: int
    token: str


class Paging:
    """Cuts lists into pages, and keeps the snapshots of unfinished lists. Callers hold the store's lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[tuple[ApiKind, int], list[Stored]] = OrderedDict()

    def page(self, kind: ApiKind, matches: Callable[[Wire], bool], query: Mapping[str, str]) -> ListPage:
        """Return one page. Raises: ApiRefusal 400 for an invalid limit or token, 410 for a dropped snapshot."""
        text = query.get("limit", "")
        if not (text or "0").isdigit():
            raise bad_request(f"limit {text!r} is not a number")
        limit = 0 if query.get("resourceVersion") == "0" else int(text or 0)
        after: Key | None = None
        revision, stored = self._store.revision, self._store.all(kind)
        if token := query.get("continue", ""):
            wanted, after = _parse_token(token)
            if wanted != _NOW:
                revision, stored = wanted, self._snapshot(kind, wanted, after)
        chosen: list[Stored] = []
        for one in stored:
            if (after is None or _key(one) > after) and matches(one.wire):
                if limit and len(chosen) == limit:
                    self._keep(kind, revision, stored)
                    return ListPage(chosen, revision, _token_of(revision, _key(chosen[-1])))
                chosen.append(one)
        return ListPage(chosen, revision, "")

    def _keep(self, kind: ApiKind, revision: int, stored: list[Stored]) -> None:
        self._snapshots[kind, revision] = stored
        self._snapshots.move_to_end((kind, revision))
        while len(self._snapshots) > _MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def _snapshot(self, kind: ApiKind, revision: int, after: Key) -> list[Stored]:
        kept = self._snapshots.get((kind, revision))
        if kept is None or revision < self._store.oldest(kind):
            self._snapshots.pop((kind, revision), None)
            raise list_expired(_token_of(_NOW, after))
        return kept


def _key(stored: Stored) -> Key:
    metadata = stored.wire["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _token_of(revision: int, after: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([revision, *after]).encode()).decode()


def _parse_token(token: str) -> tuple[int, Key]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(revision), (str(namespace), str(name))
    except (ValueError, TypeError) as err:
        raise bad_request(f"continue key is not valid: {token!r}") from err
