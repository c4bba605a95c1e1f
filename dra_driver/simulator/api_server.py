"""Server: the embedded Kubernetes API server, with the settings that tests change.

In: HTTP on the loopback interface. Out: the answers of a Kubernetes API server of the chosen version. It serves nodes,
namespaces, pods, events, leases and resource.k8s.io/v1, and /version, /readyz, /livez and /healthz. All objects are
kept in memory only. A feature gate that no rule of this server asks about is refused, because switching it would
change nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base import errors
from dra_driver.base.errors import UsageError
from dra_driver.base.versions import (
    BINDING_CONDITIONS,
    COMPATIBILITY_GROUPS,
    CONSUMABLE_CAPACITY,
    DERIVED_ATTRIBUTES,
    DEVICE_STATUS,
    DEVICE_TAINTS,
    FRACTIONAL_RANGE,
    LIST_ATTRIBUTES,
    OPTIONAL_NODE_OPERATIONS,
    PARTITIONABLE_DEVICES,
    VERSIONS,
    Since,
    gate_defaults,
    knows_gate,
    minor_of,
)
from dra_driver.base.wire import Wire
from dra_driver.simulator import claim_rules, shapes, value_rules
from dra_driver.simulator.dispatch import OPEN_PATHS, Dispatcher
from dra_driver.simulator.http import HttpRequest, InjectedFaults, LoopbackServer, RequestLog, Response, Stream
from dra_driver.simulator.registry import Registry
from dra_driver.simulator.shapes import ApiRefusal, Faults, KindRules, RuleContext, bad_request, unauthorized
from dra_driver.simulator.slice_rules import check_device
from dra_driver.simulator.store import CLAIMS, CLASSES, SLICES, TEMPLATES, ApiKind, Store, Target, Watchers, kind_of

# Slice rules: what the API server changes in and demands of a ResourceSlice; `device_rules` checks its devices.

_LISTS = ("ints", "bools", "strings", "versions")
_COUNTERS_CONSUMED_PER_SLICE = 1024  # only on 1.34


def prepare(new: Wire, old: Wire | None, context: RuleContext) -> None:
    """Drop the fields of switched-off gates unless the stored slice uses them, and add the time to new taints."""
    spec, before = new.get("spec") or {}, (old or {}).get("spec") or {}
    gates = context.gates
    if DEVICE_TAINTS not in gates and not _any_device(before, ("taints",)):
        _drop_of_devices(spec, ("taints",))
    partitionable = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")
    if PARTITIONABLE_DEVICES not in gates and not (
        _any_device(before, partitionable) or before.keys() & {"sharedCounters", "perDeviceNodeSelection"}
    ):
        _drop_of_devices(spec, partitionable)
        _drop(spec, ("sharedCounters", "perDeviceNodeSelection"))
    binding = ("bindsToNode", "bindingConditions", "bindingFailureConditions")
    if not {BINDING_CONDITIONS, DEVICE_STATUS} <= gates and not _any_device(before, binding):
        _drop_of_devices(spec, binding)
    if CONSUMABLE_CAPACITY not in gates and not _uses_policies(before):
        _drop_of_devices(spec, ("allowMultipleAllocations",))
        for device in spec.get("devices") or []:
            _drop_each((device.get("capacity") or {}).values(), ("requestPolicy",))
    if LIST_ATTRIBUTES not in gates and not _uses_lists(before):
        for device in spec.get("devices") or []:
            _drop_each((device.get("attributes") or {}).values(), _LISTS)
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", context.now)
    for amount in _amounts(spec):
        amount.setdefault("value", "0")


def _amounts(spec: Wire) -> Iterator[Wire]:
    """Yield every object with a quantity under `value`, which counts as 0 if it is absent."""
    for device in spec.get("devices") or []:
        yield from (device.get("capacity") or {}).values()
        for entry in device.get("consumesCounters") or []:
            yield from (entry.get("counters") or {}).values()
    for counter_set in spec.get("sharedCounters") or []:
        yield from (counter_set.get("counters") or {}).values()


def _any_device(spec: Wire, names: tuple[str, ...]) -> bool:
    return any(device.keys() & set(names) for device in spec.get("devices") or [])


def _uses_policies(spec: Wire) -> bool:
    capacities = (c for device in spec.get("devices") or [] for c in (device.get("capacity") or {}).values())
    return _any_device(spec, ("allowMultipleAllocations",)) or any("requestPolicy" in c for c in capacities)


def _uses_lists(spec: Wire) -> bool:
    attributes = (a for device in spec.get("devices") or [] for a in (device.get("attributes") or {}).values())
    return any(a.keys() & set(_LISTS) for a in attributes)


def _drop(wire: Wire, names: tuple[str, ...]) -> None:
    for name in names:
        wire.pop(name, None)


def _drop_each(wires: Iterable[Wire], names: tuple[str, ...]) -> None:
    for wire in wires:
        _drop(wire, names)


def _drop_of_devices(spec: Wire, names: tuple[str, ...]) -> None:
    _drop_each(spec.get("devices") or [], names)


def check(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    """Collect every fault of a slice, and every change of an immutable field."""
    spec = new.get("spec") or {}
    value_rules.check_driver(spec.get("driver"), "spec.driver", faults)
    _check_pool(spec.get("pool") or {}, faults)
    _check_node_choice(spec, faults)
    _check_devices(spec, context, faults)
    _check_counters(spec, context, faults)
    if old is not None:
        was = old["spec"]
        for path, now, then in (
            ("spec.driver", spec.get("driver"), was["driver"]),
            ("spec.pool.name", (spec.get("pool") or {}).get("name"), was["pool"]["name"]),
            ("spec.nodeName", spec.get("nodeName"), was.get("nodeName")),
        ):
            if now != then:
                faults.invalid(path, now or "", "field is immutable")


def _check_pool(pool: Wire, faults: Faults) -> None:
    value_rules.check_pool(pool.get("name"), "spec.pool.name", faults)
    if pool.get("resourceSliceCount", 0) <= 0:
        faults.invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if pool.get("generation", 0) < 0:
        faults.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def _check_node_choice(spec: Wire, faults: Faults) -> None:
    names = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    given = [name for name in names if name in spec and spec[name] not in ("", False)]
    if spec.get("nodeName") == "":
        faults.invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    elif "nodeName" in spec:
        value_rules.check_subdomain(spec["nodeName"], "spec.nodeName", faults)
    for name in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(name) is False:
            faults.invalid(f"spec.{name}", value=False, why="must be either unset or set to true")
    if "nodeSelector" in spec:
        value_rules.check_node_selector(spec["nodeSelector"], "spec.nodeSelector", faults)
    if not given:
        faults.required("spec", f"exactly one of {', '.join(f'`{n}`' for n in names)} is required")
    elif len(given) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in given) + "}"
        faults.invalid("spec", shown, f"exactly one of {', '.join(f'`{n}`' for n in names)} is required")


def _check_devices(spec: Wire, context: RuleContext, faults: Faults) -> None:
    devices = spec.get("devices") or []
    maximum = errors.SLICE_DEVICES
    uses_lists = knows_gate(context.minor, LIST_ATTRIBUTES) and _uses_lists(spec)
    is_advanced = _any_device(spec, ("taints", "consumesCounters")) or uses_lists
    if context.minor >= Since.ADVANCED_DEVICES and is_advanced:
        maximum = errors.SLICE_DEVICES_ADVANCED
    if len(devices) > maximum:
        faults.too_many("spec.devices", len(devices), maximum)
    seen: set[str] = set()
    for i, device in enumerate(devices):
        check_device(device, f"spec.devices[{i}]", spec, context, faults)
        name = device.get("name", "")
        if name in seen:
            faults.duplicate(f"spec.devices[{i}]", name)
        seen.add(name)


def _check_counters(spec: Wire, context: RuleContext, faults: Faults) -> None:
    is_apart = context.minor >= Since.COUNTERS_APART
    if is_apart and "sharedCounters" in spec and "devices" in spec:
        faults.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    sets: list[Wire] = spec.get("sharedCounters") or []
    if is_apart and len(sets) > errors.COUNTER_SETS_PER_SLICE:
        faults.too_many("spec.sharedCounters", len(sets), errors.COUNTER_SETS_PER_SLICE)
    seen: set[Any] = set()
    for i, counter_set in enumerate(sets):
        at, name = f"spec.sharedCounters[{i}]", counter_set.get("name")
        value_rules.check_label_name(name, f"{at}.name", faults)
        if name in seen:
            faults.duplicate(at, name)
        seen.add(name)
        _check_counter_names(counter_set.get("counters") or {}, f"{at}.counters", context, faults)
    if not is_apart:
        _check_totals(spec, sets, faults)


def _check_counter_names(counters: Wire, at: str, context: RuleContext, faults: Faults) -> None:
    if not counters:
        faults.required(at)
    if context.minor >= Since.COUNTERS_APART and len(counters) > errors.COUNTERS_PER_SET:
        faults.too_many(at, len(counters), errors.COUNTERS_PER_SET)
    for name in counters:
        value_rules.check_label_name(name, value_rules.of_key(at, name, context.minor), faults)


def _check_totals(spec: Wire, sets: list[Wire], faults: Faults) -> None:
    """Check the limits of servers before 1.35, which count over a whole slice."""
    maximum = errors.COUNTERS_PER_SLICE_1_34
    total = sum(len(one.get("counters") or {}) for one in sets)
    if total > maximum:
        faults.invalid("spec.sharedCounters", total, f"the total number of counters must not exceed {maximum}")
    maximum = _COUNTERS_CONSUMED_PER_SLICE
    taken = [counter for device in spec.get("devices") or [] for counter in device.get("consumesCounters") or []]
    consumed = sum(len(one.get("counters") or {}) for one in taken)
    if consumed > maximum:
        faults.invalid("spec.devices", consumed, f"the total number of consumed counters must not exceed {maximum}")


RULES = KindRules(shape=shapes.SLICE, prepare=prepare, check=check)


_NOT_SERVED = (COMPATIBILITY_GROUPS, DERIVED_ATTRIBUTES, FRACTIONAL_RANGE, OPTIONAL_NODE_OPERATIONS)
# The rules of each kind; objects of a kind that is not listed are stored without checks.
_RULES: Mapping[ApiKind, KindRules] = {
    SLICES: RULES,
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


# API port: the one function of the Kubernetes API that the embedded kubelet, scheduler and controllers use.


class Api(Protocol):
    """The one function of the Kubernetes API that the embedded parts use."""

    def request(
        self, method: str, path: str, *, body: Wire | None = None, query: Mapping[str, str] | None = None
    ) -> Wire:
        """Send a request and return the decoded answer.

        Raises: ApiError if the answer is no success, or if there is none.
        """
