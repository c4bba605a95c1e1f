"""Dispatch: from an HTTP request to the verb that it means, and back to an answer.

In: method, path, query and body. Out: objects, lists, watches, or an ApiRefusal. It knows neither who asks nor which
faults a test has set up. All pages of one list come from one snapshot of the objects, and the snapshots of the last few
lists are kept. When a snapshot has been dropped (by `Store.compact`, or because of too many other lists), its tokens
are answered with 410 and with another token, which continues after the last object in the present state. With
resourceVersion=0 a limit is ignored.
Source: Kubernetes API concepts (verbs, patch types, list and watch parameters; "Retrieving large results sets in
chunks").
"""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.base.wire import Wire
from dra_driver.simulator.claim_rules import DeviceKey, apply_status, merge_patch
from dra_driver.simulator.http import HttpRequest, Response, Stream
from dra_driver.simulator.registry import Registry
from dra_driver.simulator.shapes import bad_request, conflict, list_expired, method_not_allowed, unsupported_media_type
from dra_driver.simulator.store import (
    ApiKind,
    Key,
    ObjectSelection,
    Store,
    Stored,
    Target,
    Watchers,
    WatchRequest,
    parse_path,
    select,
)

_MAX_SNAPSHOTS = 8
_NOW = -1  # the revision in a token that continues with the present state
_PATCH_APPLY = "application/apply-patch+yaml"
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_WATCH_DEFAULT_S = 1800.0
OPEN_PATHS = frozenset(["/version", "/readyz", "/livez", "/healthz"])


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


class Dispatcher:
    """Answers requests from the store.

    With `gone_as_http`, a watch from a version that has been forgotten is refused with HTTP 410 instead of an ERROR
    event.
    """

    def __init__(self, store: Store, registry: Registry, watchers: Watchers, minor: int) -> None:
        self._store = store
        self._paging = Paging(store)
        self._registry = registry
        self._watchers = watchers
        self._minor = minor
        self._applied: dict[tuple[str, str], frozenset[DeviceKey]] = {}
        self._lock = threading.Lock()
        self.gone_as_http = False

    def answer(self, request: HttpRequest) -> Response | Stream:
        """Answer one request. Raises: ApiRefusal."""
        if request.path in OPEN_PATHS:
            return self._about(request.path)
        target = parse_path(request.path)
        is_dry = request.query.get("dryRun") == "All"
        if request.query.get("dryRun") and (not is_dry or request.method != "POST"):
            raise bad_request("dryRun is served only for create, as dryRun=All")
        if request.method in ("GET", "HEAD"):
            if target.name:
                return Response(200, self._registry.read(target).encoded)
            if request.query.get("watch") in ("1", "true"):
                return self._watch(target, request)
            return self._list(target, request.query)
        if request.method == "POST" and not target.name:
            stored = self._registry.create(target.kind, target.namespace, _body(request), is_dry=is_dry)
            return Response(201, stored.encoded)
        if request.method == "PUT" and target.name:
            return Response(200, self._registry.replace(target, _body(request)).encoded)
        if request.method == "PATCH" and target.name:
            return self._patch(target, request)
        if request.method == "DELETE" and not target.subresource:
            return self._delete(target, request)
        raise method_not_allowed(request.method)

    def _about(self, path: str) -> Response:
        if path != "/version":
            return Response(200, b"ok", content_type="text/plain")
        version = {
            "major": "1",
            "minor": str(self._minor),
            "gitVersion": f"v1.{self._minor}.0",
            "platform": "linux/amd64",
        }
        return Response(200, json.dumps(version).encode())

    def _list(self, target: Target, query: Mapping[str, str]) -> Response:
        kind = target.kind
        selection = _selection(target, query)
        with self._store.lock:
            page = self._paging.page(kind, selection.matches, query)
        chosen = b",".join(s.encoded for s in page.objects)
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version}
        more = {"continue": page.token} if page.token else {}
        metadata = json.dumps({"resourceVersion": str(page.revision), **more}).encode()
        body = json.dumps(head)[:-1].encode() + b',"metadata":%b,"items":[%b]}' % (metadata, chosen)
        return Response(200, body)

    def _watch(self, target: Target, request: HttpRequest) -> Stream:
        query = request.query
        selection = _selection(target, query)
        wants_initial = query.get("sendInitialEvents") == "true"
        start = _revision(query.get("resourceVersion", ""))
        if wants_initial or start == 0:
            start = None
        if start is not None and self.gone_as_http:
            self._store.events_after(target.kind, start)
        watch = WatchRequest(
            kind=target.kind,
            selection=selection,
            start=start,
            wants_bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
            wants_initial_mark=wants_initial,
            timeout_s=float(_revision(query.get("timeoutSeconds", "")) or _WATCH_DEFAULT_S),
        )
        return Stream(self._watchers.stream(watch, request.is_gone))

    def _patch(self, target: Target, request: HttpRequest) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip()
        patch = _body(request)
        if content_type in _PATCHES:
            return Response(200, self._registry.patch(target, lambda wire: _merged(wire, patch)).encoded)
        if content_type != _PATCH_APPLY:
            raise unsupported_media_type(content_type)
        owner = request.query.get("fieldManager", "")
        if not owner:
            raise bad_request("fieldManager is required for apply patch")
        if target.subresource != "status":
            return Response(200, self._registry.patch(target, lambda wire: _merged(wire, patch)).encoded)
        return self._apply_status(target, patch, owner)

    def _apply_status(self, target: Target, patch: Wire, owner: str) -> Response:
        with self._lock:
            uid = self._registry.read(target).wire["metadata"]["uid"]
            owned = self._applied.get((uid, owner), frozenset())
            now_owned = owned

            def change(wire: Wire) -> Wire:
                nonlocal now_owned
                wanted = (patch.get("metadata") or {}).get("uid")
                if wanted and wanted != wire["metadata"]["uid"]:
                    raise conflict(target.kind.resource, target.name, f"Precondition failed: UID {wanted}")
                applied, now_owned = apply_status(wire, patch, owned)
                return applied

            stored = self._registry.patch(target, change)
            self._applied[uid, owner] = now_owned
        return Response(200, stored.encoded)

    def _delete(self, target: Target, request: HttpRequest) -> Response:
        options = _body(request) if request.body else {}
        if target.name:
            return Response(200, self._registry.delete(target, options.get("preconditions") or {}).encoded)
        query = request.query
        selection = _selection(target, query)
        with self._store.lock:
            for stored in self._store.all(target.kind):
                if selection.matches(stored.wire):
                    metadata = stored.wire["metadata"]
                    self._registry.delete(Target(target.kind, metadata.get("namespace", ""), metadata["name"], ""), {})
        return Response(200, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode())


def _body(request: HttpRequest) -> Wire:
    """Return the body, a JSON object (or YAML, for apply). Raises: ApiRefusal 400."""
    try:
        decoded = json.loads(request.body)
    except ValueError:
        decoded = None
        if request.headers.get("content-type", "").startswith("application/apply-patch"):
            import yaml  # noqa: PLC0415  (only kubectl sends YAML)

            decoded = yaml.safe_load(request.body)
    if not isinstance(decoded, dict):
        raise bad_request("the body of the request is not a JSON object")
    return decoded


def _selection(target: Target, query: Mapping[str, str]) -> ObjectSelection:
    return select(target.kind, target.namespace, query.get("fieldSelector", ""), query.get("labelSelector", ""))


def _merged(wire: Wire, patch: Wire) -> Wire:
    merged: Any = merge_patch(wire, patch)
    if "resourceVersion" not in (patch.get("metadata") or {}):
        # A patch without a version applies to any version of the object.
        merged["metadata"].pop("resourceVersion", None)
    return dict(merged)


def _revision(text: str) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"strconv.ParseUint: parsing {text!r}: invalid syntax")
    return int(text)
