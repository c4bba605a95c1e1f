"""Registry: the verbs create, replace, patch and delete, with everything that a write does besides storing.

In: decoded bodies. Out: stored objects, or an ApiRefusal. Fields set by the server (uid, generation, creationTimestamp,
resourceVersion), stale writes, preconditions, finalizers and owned objects are handled here; what one kind demands is
in its rules. Source: Kubernetes API conventions; apiserver registry/rest.
"""

from __future__ import annotations

import copy
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.base.wire import Wire
from dra_driver.simulator.shapes import (
    ApiRefusal,
    Faults,
    KindRules,
    RuleContext,
    already_exists,
    bad_request,
    conflict,
    decode,
    invalid,
    not_found,
    without_empty,
)
from dra_driver.simulator.store import KINDS, NAMESPACES, ApiKind, Key, Store, Stored, Target

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
_OPAQUE = frozenset(["parameters", "data"])


def now_text() -> str:
    """Return the current time as the API server writes it: UTC, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Registry:
    """The verbs on stored objects. Every verb is one atomic step under the store's lock."""

    def __init__(self, store: Store, rules: Mapping[ApiKind, KindRules], *, minor: int, gates: frozenset[str]) -> None:
        self._store = store
        self._rules = rules
        self._minor = minor
        self._gates = gates

    def read(self, target: Target) -> Stored:
        """Return an object. Raises: ApiRefusal 404."""
        stored = self._store.get(target.kind, _key(target.kind, target.namespace, target.name))
        if stored is None:
            raise not_found(target.kind.resource, target.name)
        return stored

    def create(self, kind: ApiKind, namespace: str, wire: Wire, *, is_dry: bool = False) -> Stored:
        """Create an object under its own name or a generated one; a dry run stores nothing.

        Raises: ApiRefusal 400, 404, 409, 422.
        """
        with self._store.lock:
            new = self._decoded(kind, wire)
            metadata = new["metadata"]
            if metadata.get("resourceVersion"):
                raise ApiRefusal(500, "InternalError", "resourceVersion should not be set on objects to be created")
            self._place(kind, namespace, metadata)
            for name in _SERVER_FIELDS:
                metadata.pop(name, None)
            if kind.has_status and kind.plural == "resourceclaims":
                new.pop("status", None)
            context = self._context()
            self._check_new(kind, new, context)
            key = _key(kind, metadata.get("namespace", ""), metadata["name"])
            if self._store.get(kind, key) is not None:
                raise already_exists(kind.resource, metadata["name"])
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": context.now}
            if kind.has_generation:
                metadata["generation"] = 1
            if is_dry:
                return Stored(self._as_stored(kind, new))
            return self._store.put(kind, key, self._as_stored(kind, new))

    def _check_new(self, kind: ApiKind, new: Wire, context: RuleContext) -> None:
        """Complete a new object by the rules of its kind and check it. Raises: ApiRefusal 422."""
        name, rules, faults = new["metadata"]["name"], self._rules.get(kind, KindRules()), Faults()
        rules.prepare(new, None, context)
        if not _NAME.fullmatch(name) or len(name) > 253:
            faults.invalid("metadata.name", name, "a lowercase RFC 1123 subdomain is expected")
        rules.check(new, None, context, faults)
        _refuse(kind, name, faults)

    def replace(self, target: Target, wire: Wire) -> Stored:
        """Replace the stored object. Raises: ApiRefusal 400, 404, 409, 422."""
        with self._store.lock:
            stored = self.read(target)
            return self._update(target, stored, wire)

    def patch(self, target: Target, change: Callable[[Wire], Wire]) -> Stored:
        """Replace an object by `change(object)` in one atomic step. Raises: as `replace`."""
        with self._store.lock:
            stored = self.read(target)
            return self._update(target, stored, change(stored.wire))

    def delete(self, target: Target, preconditions: Wire) -> Stored:
        """Delete an object and what it owns, or only mark it if it has finalizers. Raises: ApiRefusal 404, 409."""
        with self._store.lock:
            stored = self.read(target)
            metadata = stored.wire["metadata"]
            for name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                wanted = preconditions.get(name)
                if wanted and wanted != metadata[name]:
                    why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: "
                    raise conflict(target.kind.resource, target.name, why + metadata[name])
            if metadata.get("finalizers"):
                if metadata.get("deletionTimestamp"):
                    return stored
                marked = copy.deepcopy(stored.wire)
                marked["metadata"]["deletionTimestamp"] = now_text()
                marked["metadata"]["deletionGracePeriodSeconds"] = 0
                return self._store.put(target.kind, _key(target.kind, target.namespace, target.name), marked)
            return self._remove(target.kind, _key(target.kind, target.namespace, target.name))

    def _remove(self, kind: ApiKind, key: Key) -> Stored:
        removed = self._store.remove(kind, key)
        uid = removed.wire["metadata"]["uid"]
        for owned_kind in KINDS:
            for stored in self._store.all(owned_kind):
                metadata = stored.wire["metadata"]
                if any(owner.get("uid") == uid for owner in metadata.get("ownerReferences") or []):
                    self.delete(Target(owned_kind, metadata.get("namespace", ""), metadata["name"], ""), {})
        return removed

    def _update(self, target: Target, stored: Stored, wire: Wire) -> Stored:
        kind, old = target.kind, stored.wire
        new = self._decoded(kind, wire)
        _check_identity(target, old, new["metadata"])
        if target.subresource == "status":
            new = {**old, "metadata": dict(old["metadata"]), "status": new.get("status") or {}}
        elif kind.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        metadata = new["metadata"]
        metadata |= {name: old["metadata"][name] for name in _SERVER_FIELDS if name in old["metadata"]}
        if kind.is_namespaced:
            metadata["namespace"] = target.namespace
        self._check(target, new, old)
        new = self._as_stored(kind, new)
        if new == old:
            return stored
        if kind.has_generation and new.get("spec") != old.get("spec"):
            metadata = new["metadata"]
            metadata["generation"] = old["metadata"].get("generation", 0) + 1
        key = _key(kind, target.namespace, target.name)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._store.put(kind, key, new)
            return self._remove(kind, key)
        return self._store.put(kind, key, new)

    def _check(self, target: Target, new: Wire, old: Wire) -> None:
        context = self._context()
        rules = self._rules.get(target.kind, KindRules())
        faults = Faults()
        rules.prepare(new, old, context)
        if target.subresource == "status":
            rules.check_status(new, old, context, faults)
        else:
            rules.check(new, old, context, faults)
        _refuse(target.kind, target.name, faults)

    def _decoded(self, kind: ApiKind, wire: Wire) -> Wire:
        """Return a new object of this kind. Raises: ApiRefusal 400 if the body is of another kind or type."""
        for name, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if wire.get(name, wanted) != wanted:
                raise bad_request(f"the {name} in the data ({wire[name]}) does not match the expected ({wanted})")
        metadata = wire.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise bad_request("json: cannot unmarshal into field metadata of type object")
        shape = self._rules.get(kind, KindRules()).shape
        body: dict[str, Any] = copy.deepcopy(wire) if shape is None else decode(wire, shape)
        kept = {name: value for name, value in copy.deepcopy(metadata or {}).items() if value is not None}
        kept.pop("managedFields", None)
        return body | {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": kept}

    def _as_stored(self, kind: ApiKind, wire: Wire) -> Wire:
        """Return the object without empty lists and maps, if the shape of its kind is known."""
        rules = self._rules.get(kind, KindRules())
        if rules.shape is None:
            return wire
        stored: Wire = without_empty(wire, _OPAQUE)
        stored.setdefault("spec", {})
        rules.finish(stored)
        return stored

    def _place(self, kind: ApiKind, namespace: str, metadata: Wire) -> None:
        """Set the namespace and the name of a new object."""
        if kind.is_namespaced:
            if metadata.get("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            if self._store.get(NAMESPACES, ("", namespace)) is None:
                raise not_found("namespaces", namespace)
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"][:58] + "".join(random.choices(_SUFFIX, k=5))  # noqa: S311
        if not metadata.get("name"):
            faults = Faults()
            faults.required("metadata.name", "name or generateName is required")
            _refuse(kind, "", faults)

    def _context(self) -> RuleContext:
        def labels(namespace: str) -> Mapping[str, str]:
            stored = self._store.get(NAMESPACES, ("", namespace))
            return (stored.wire["metadata"].get("labels") or {}) if stored else {}

        return RuleContext(self._minor, self._gates, now_text(), labels)


def _key(kind: ApiKind, namespace: str, name: str) -> Key:
    return (namespace if kind.is_namespaced else "", name)


def _refuse(kind: ApiKind, name: str, faults: Faults) -> None:
    if faults.causes:
        raise invalid(kind.kind, kind.group, name, faults.causes)


def _check_identity(target: Target, old: Wire, metadata: Wire) -> None:
    """Check name, uid and resourceVersion of an update. Raises: ApiRefusal 400, 409."""
    if metadata.setdefault("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    uid = metadata.get("uid")
    if uid and uid != old["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
        raise conflict(target.kind.resource, target.name, why)
    version = metadata.get("resourceVersion")
    if version and version != old["metadata"]["resourceVersion"]:
        raise conflict(target.kind.resource, target.name)
