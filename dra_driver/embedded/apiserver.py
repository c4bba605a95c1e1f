"""Apiserver: the embedded Kubernetes API: HTTP paths to verbs, and the knobs that tests turn.

In: HTTP on the loopback interface. Out: what a Kubernetes API server of the chosen version would answer. Served: nodes,
namespaces, pods and resource.k8s.io/v1; /version, /readyz, /livez, /healthz. It never leaves memory.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.embedded.gates import gates_on, parse_minor
from dra_driver.embedded.httpd import HttpServer, Request, Response, Stream
from dra_driver.embedded.kind_rules import RULES
from dra_driver.embedded.kinds import Kind, Target, kind_of, parse_path
from dra_driver.embedded.patching import DeviceKey, apply_status, merge_patch
from dra_driver.embedded.refusals import (
    Refusal,
    bad_request,
    conflict,
    expired,
    method_not_allowed,
    unauthorized,
    unsupported_media_type,
)
from dra_driver.embedded.registry import Registry
from dra_driver.embedded.selection import select
from dra_driver.embedded.store import Store
from dra_driver.embedded.troubles import RequestLog, Troubles
from dra_driver.embedded.watching import Watchers, WatchRequest
from dra_driver.model.wire import Wire

_PATCH_APPLY = "application/apply-patch+yaml"
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_WATCH_DEFAULT_S = 1800.0


class EmbeddedApi:
    """A Kubernetes API server in this process.

    `version` is "1.34" to "1.37"; `gates` overrides that version's feature gates. Knobs: `troubles` (failing requests,
    latency, hanging up), `log` (what was asked), `compact()`, `drop_watches()`, `expire_watches()`, `gone_as_http`,
    `bookmark_every_s`, `token`.
    """

    def __init__(self, *, version: str = "1.36", gates: Mapping[str, bool] | None = None, token: str = "") -> None:
        self.minor = parse_minor(version)
        self.gates = gates_on(self.minor, gates or {})
        self.token = token or "embedded-token"
        self.store = Store()
        self.log = RequestLog()
        self.troubles = Troubles()
        self.gone_as_http = False
        self.url = ""
        self._registry = Registry(self.store, RULES, minor=self.minor, gates=self.gates)
        self._watchers = Watchers(self.store)
        self._http = HttpServer(self._serve)
        self._applied: dict[tuple[str, str], frozenset[DeviceKey]] = {}
        self._apply_lock = threading.Lock()
        for name in ("default", "kube-system"):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, port: int = 0) -> str:
        """Serve; returns the URL. After `stop` the same objects can be served again on the same port."""
        self.url = f"http://127.0.0.1:{self._http.start(port)}"
        return self.url

    def stop(self) -> None:
        """Stop serving; open watches end and connections are closed."""
        self._watchers.end_all()
        self._http.stop()

    def __enter__(self) -> EmbeddedApi:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path | str, *, token_file: Path | str | None = None) -> Path:
        """Write a kubeconfig with this server and its token (or with a file that holds the token)."""
        user: Wire = {"token": self.token}
        if token_file is not None:
            Path(token_file).write_text(self.token)
            user = {"tokenFile": str(token_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": user}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
            "current-context": "embedded",
        }
        path = Path(path)
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML
        return path

    # -- knobs --------------------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget the history of events: resuming from any earlier resourceVersion answers 410."""
        self.store.compact()

    def drop_watches(self) -> None:
        """End every open watch without a word, as a server that restarts does."""
        self._watchers.end_all()

    def expire_watches(self) -> None:
        """End every open watch with an ERROR event of code 410, and forget the history."""
        self.store.compact()
        self._watchers.end_all(is_expired=True)

    def hang_up(self) -> None:
        """Close every open connection at once."""
        self._http.hang_up()

    @property
    def open_watches(self) -> int:
        """Count the watches that are open now."""
        return self._watchers.open

    @property
    def bookmark_every_s(self) -> float:
        """Say how often a watch that wants bookmarks gets one."""
        return self._watchers.bookmark_every_s

    @bookmark_every_s.setter
    def bookmark_every_s(self, seconds: float) -> None:
        self._watchers.bookmark_every_s = seconds

    # -- without HTTP -------------------------------------------------------------------------------------------------

    def create(self, wire: Wire) -> Wire:
        """Create an object as POST would. Raises: Refusal."""
        kind = kind_of(wire)
        namespace = (wire.get("metadata") or {}).get("namespace", "default")
        return self._registry.create(kind, namespace, wire).wire

    def get(self, kind: Kind, name: str, namespace: str = "default") -> Wire:
        """Read an object. The result is the stored one: don't change it. Raises: Refusal 404."""
        return self._registry.read(Target(kind, namespace if kind.is_namespaced else "", name, "")).wire

    def items(self, kind: Kind) -> list[Wire]:
        """Read all objects of a kind, in name order. The results are the stored ones: don't change them."""
        return [stored.wire for stored in self.store.all(kind)]

    def delete(self, kind: Kind, name: str, namespace: str = "default") -> Wire:
        """Delete an object as DELETE would. Raises: Refusal 404."""
        return self._registry.delete(Target(kind, namespace if kind.is_namespaced else "", name, ""), {}).wire

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Wire | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Wire:
        """Answer one request without the network. Raises: Refusal."""
        encoded = b"" if body is None else json.dumps(body).encode()
        answer = self._dispatch(Request(method, path, dict(query or {}), {"content-type": content_type}, encoded))
        if isinstance(answer, Stream):
            raise bad_request("a watch needs HTTP")
        decoded: Wire = json.loads(answer.body)
        return decoded

    # -- with HTTP ----------------------------------------------------------------------------------------------------

    def _serve(self, request: Request) -> Response | Stream | None:
        started = time.monotonic()
        try:
            if self.troubles.meet(request):
                return None
            self._authenticate(request)
            answer = self._dispatch(request)
        except Refusal as refusal:
            retry = (("Retry-After", f"{refusal.retry_after_s:g}"),) if refusal.retry_after_s else ()
            answer = Response(refusal.status, json.dumps(refusal.wire()).encode(), headers=retry)
        status = 200 if isinstance(answer, Stream) else answer.status
        self.log.add(request, status, time.monotonic() - started)
        return answer

    def _authenticate(self, request: Request) -> None:
        if request.path in _OPEN_PATHS:
            return
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise unauthorized()

    def _dispatch(self, request: Request) -> Response | Stream:
        if request.path in _OPEN_PATHS:
            return self._about(request.path)
        target = parse_path(request.path)
        if request.method in ("GET", "HEAD"):
            if target.name:
                return Response(200, self._registry.read(target).encoded)
            if request.query.get("watch") in ("1", "true"):
                return self._watch(target, request)
            return self._list(target, request.query)
        if request.method == "POST" and not target.name:
            stored = self._registry.create(target.kind, target.namespace, _body(request))
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
            "minor": str(self.minor),
            "gitVersion": f"v1.{self.minor}.0",
            "platform": "linux/amd64",
        }
        return Response(200, json.dumps(version).encode())

    def _list(self, target: Target, query: Mapping[str, str]) -> Response:
        kind = target.kind
        selection = select(kind, target.namespace, query.get("fieldSelector", ""), query.get("labelSelector", ""))
        if query.get("continue"):
            raise expired(0, self.store.revision)  # lists are whole: a continue token is somebody else's
        with self.store.lock:
            revision, items = self.store.revision, self.store.all(kind)
        chosen = b",".join(s.encoded for s in items if selection.matches(s.wire))
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version}
        metadata = json.dumps({"resourceVersion": str(revision)}).encode()
        body = json.dumps(head)[:-1].encode() + b',"metadata":%b,"items":[%b]}' % (metadata, chosen)
        return Response(200, body)

    def _watch(self, target: Target, request: Request) -> Stream:
        query = request.query
        selection = select(
            target.kind, target.namespace, query.get("fieldSelector", ""), query.get("labelSelector", "")
        )
        wants_initial = query.get("sendInitialEvents") == "true"
        start = _revision(query.get("resourceVersion", ""))
        if wants_initial or start == 0:
            start = None
        if start is not None and self.gone_as_http:
            self.store.events_after(target.kind, start)
        watch = WatchRequest(
            kind=target.kind,
            selection=selection,
            start=start,
            wants_bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
            wants_initial_mark=wants_initial,
            timeout_s=float(_revision(query.get("timeoutSeconds", "")) or _WATCH_DEFAULT_S),
        )
        return Stream(self._watchers.stream(watch, request.is_gone))

    def _patch(self, target: Target, request: Request) -> Response:
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
        with self._apply_lock:
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

    def _delete(self, target: Target, request: Request) -> Response:
        options = _body(request) if request.body else {}
        if target.name:
            return Response(200, self._registry.delete(target, options.get("preconditions") or {}).encoded)
        query = request.query
        selection = select(
            target.kind, target.namespace, query.get("fieldSelector", ""), query.get("labelSelector", "")
        )
        with self.store.lock:
            for stored in self.store.all(target.kind):
                if selection.matches(stored.wire):
                    metadata = stored.wire["metadata"]
                    self._registry.delete(Target(target.kind, metadata.get("namespace", ""), metadata["name"], ""), {})
        return Response(200, json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}).encode())


_OPEN_PATHS = frozenset(["/version", "/readyz", "/livez", "/healthz"])


def _body(request: Request) -> Wire:
    """Read the body as a JSON object (YAML too, for apply). Raises: Refusal 400."""
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


def _merged(wire: Wire, patch: Wire) -> Wire:
    merged: Any = merge_patch(wire, patch)
    if "resourceVersion" not in (patch.get("metadata") or {}):
        merged["metadata"].pop("resourceVersion", None)  # a patch without one is not bound to what it was read from
    return dict(merged)


def _revision(text: str) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"strconv.ParseUint: parsing {text!r}: invalid syntax")
    return int(text)
