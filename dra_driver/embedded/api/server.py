"""Server: the embedded Kubernetes API server, with the settings that tests change.

In: HTTP on the loopback interface. Out: the answers of a Kubernetes API server of the chosen version. It serves nodes,
namespaces, pods, events, leases and resource.k8s.io/v1, and /version, /readyz, /livez and /healthz. All objects are
kept in memory only. A feature gate that no rule of this server asks about is refused, because switching it would
change nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from dra_driver.embedded.api.dispatch import OPEN_PATHS, Dispatcher
from dra_driver.embedded.api.httpd import HttpRequest, LoopbackServer, Response, Stream
from dra_driver.embedded.api.injected_faults import InjectedFaults, RequestLog
from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, SLICES, TEMPLATES, ApiKind, Target, kind_of
from dra_driver.embedded.api.registry import Registry
from dra_driver.embedded.api.store import Store
from dra_driver.embedded.api.watching import Watchers
from dra_driver.embedded.api_rules import claim_rules, slice_rules
from dra_driver.embedded.api_rules.refusals import ApiRefusal, bad_request, unauthorized
from dra_driver.embedded.api_rules.rules import KindRules
from dra_driver.model.errors import UsageError
from dra_driver.model.kubernetes import (
    COMPATIBILITY_GROUPS,
    DERIVED_ATTRIBUTES,
    FRACTIONAL_RANGE,
    OPTIONAL_NODE_OPERATIONS,
    VERSIONS,
    gate_defaults,
    minor_of,
)
from dra_driver.model.wire import Wire

_NOT_SERVED = (COMPATIBILITY_GROUPS, DERIVED_ATTRIBUTES, FRACTIONAL_RANGE, OPTIONAL_NODE_OPERATIONS)
# The rules of each kind; objects of a kind that is not listed are stored without checks.
_RULES: Mapping[ApiKind, KindRules] = {
    SLICES: slice_rules.RULES,
    CLAIMS: claim_rules.CLAIM_RULES,
    TEMPLATES: claim_rules.TEMPLATE_RULES,
    CLASSES: claim_rules.CLASS_RULES,
}


def parse_minor(version: str) -> int:
    """Return the minor of "1.36". Raises: UsageError("usage.server-version")."""
    if version not in VERSIONS:
        raise UsageError(
            "server-version", f"there is no embedded API of version {version!r}, only of {', '.join(VERSIONS)}"
        )
    return minor_of(version)


def gates_on(minor: int, overrides: Mapping[str, bool]) -> frozenset[str]:
    """Return the gates that are on. Raises: UsageError("usage.gate") for one that this version does not know."""
    defaults = {name: is_on for name, is_on in gate_defaults(minor).items() if name not in _NOT_SERVED}
    if unknown := overrides.keys() - defaults.keys():
        raise UsageError("gate", f"1.{minor} has no feature gate {', '.join(sorted(unknown))}")
    return frozenset(name for name, is_on in {**defaults, **overrides}.items() if is_on)


class EmbeddedApi:
    """A Kubernetes API server in this process.

    `version` is "1.34" to "1.37"; `gates` overrides that version's feature gates. For tests there are `faults` (failing
    requests, latency, closed connections), `log` (the requests so far), `compact()`, `drop_watches()`,
    `expire_watches()`, `gone_as_http`, `bookmark_every_s` and `token`.
    """

    def __init__(self, *, version: str = "1.36", gates: Mapping[str, bool] | None = None, token: str = "") -> None:
        self.minor = parse_minor(version)
        self.gates = gates_on(self.minor, gates or {})
        self.token = token or "embedded-token"
        self.store = Store()
        self.log = RequestLog()
        self.faults = InjectedFaults()
        self.url = ""
        self._registry = Registry(self.store, _RULES, minor=self.minor, gates=self.gates)
        self._watchers = Watchers(self.store)
        self._http = LoopbackServer(self._serve)
        self._dispatch = Dispatcher(self.store, self._registry, self._watchers, self.minor)
        for name in ("default", "kube-system"):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # -- starting and stopping ----------------------------------------------------------------------------------------

    def start(self, port: int = 0) -> str:
        """Serve, and return the URL. After `stop` the same objects can be served again, also on the same port."""
        self.url = f"http://127.0.0.1:{self._http.start(port)}"
        return self.url

    def stop(self) -> None:
        """Stop serving: open watches end, and all connections are closed."""
        self._watchers.end_all()
        self._http.stop()

    def __enter__(self) -> EmbeddedApi:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path | str, *, token_file: Path | str | None = None) -> Path:
        """Write a kubeconfig with this server and its token, or with a file that holds the token; return its path."""
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
        path.write_text(json.dumps(config, indent=2))  # every JSON text is YAML, too
        return path

    # -- settings for tests -------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget the history of events, so that a watch from any earlier resourceVersion is answered with 410."""
        self.store.compact()

    def drop_watches(self) -> None:
        """End every open watch without an error, as a server that restarts does."""
        self._watchers.end_all()

    def expire_watches(self) -> None:
        """End every open watch with an ERROR event of code 410, and forget the history."""
        self.store.compact()
        self._watchers.end_all(is_expired=True)

    def close_connections(self) -> None:
        """Close every open connection at once."""
        self._http.close_connections()

    @property
    def open_watches(self) -> int:
        """The number of watches that are open now."""
        return self._watchers.open

    @property
    def gone_as_http(self) -> bool:
        """Whether a watch from a forgotten version is refused with HTTP 410 instead of an ERROR event."""
        return self._dispatch.gone_as_http

    @gone_as_http.setter
    def gone_as_http(self, is_on: bool) -> None:
        self._dispatch.gone_as_http = is_on

    @property
    def bookmark_every_s(self) -> float:
        """The seconds between two bookmarks of a watch that asked for them."""
        return self._watchers.bookmark_every_s

    @bookmark_every_s.setter
    def bookmark_every_s(self, seconds: float) -> None:
        self._watchers.bookmark_every_s = seconds

    # -- without HTTP -------------------------------------------------------------------------------------------------

    def create(self, wire: Wire) -> Wire:
        """Create an object as POST would. Raises: ApiRefusal."""
        kind = kind_of(wire)
        namespace = (wire.get("metadata") or {}).get("namespace", "default")
        return self._registry.create(kind, namespace, wire).wire

    def get(self, kind: ApiKind, name: str, namespace: str = "default") -> Wire:
        """Return an object. It is the stored one and must not be changed. Raises: ApiRefusal 404."""
        return self._registry.read(Target(kind, namespace if kind.is_namespaced else "", name, "")).wire

    def items(self, kind: ApiKind) -> list[Wire]:
        """Return all objects of a kind, in the order of names. They are the stored ones and must not be changed."""
        return [stored.wire for stored in self.store.all(kind)]

    def delete(self, kind: ApiKind, name: str, namespace: str = "default") -> Wire:
        """Delete an object as DELETE would. Raises: ApiRefusal 404."""
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
        """Answer one request without the network. Raises: ApiRefusal."""
        encoded = b"" if body is None else json.dumps(body).encode()
        answer = self._dispatch.answer(
            HttpRequest(method, path, dict(query or {}), {"content-type": content_type}, encoded)
        )
        if isinstance(answer, Stream):
            raise bad_request("a watch needs HTTP")
        decoded: Wire = json.loads(answer.body)
        return decoded

    # -- with HTTP ----------------------------------------------------------------------------------------------------

    def _serve(self, request: HttpRequest) -> Response | Stream | None:
        started = time.monotonic()
        try:
            if self.faults.apply(request):
                return None
            self._authenticate(request)
            answer = self._dispatch.answer(request)
        except ApiRefusal as refusal:
            retry = (("Retry-After", f"{refusal.retry_after_s:g}"),) if refusal.retry_after_s else ()
            answer = Response(refusal.status, json.dumps(refusal.wire()).encode(), headers=retry)
        status = 200 if isinstance(answer, Stream) else answer.status
        self.log.add(request, status, time.monotonic() - started)
        return answer

    def _authenticate(self, request: HttpRequest) -> None:
        if request.path in OPEN_PATHS:
            return
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise unauthorized()
