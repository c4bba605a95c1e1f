"""Names of claim templates: derived from their object, the same on every run, and never a name that is taken.

In: claim specs of an object's pods, and the templates that exist. Out: names; new templates are recorded for the
caller to write. Pods of one object with equal claims share a template; an existing template with the same spec is
used again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dra_driver.migrate.devices_wanted import free_name, label
from dra_driver.migrate.objects import TEMPLATE, KubeObject

Spec = dict[str, Any]


@dataclass(slots=True)
class TemplateNames:
    """The templates that exist, by name, each with namespace and spec; and the names of existing ConfigMaps."""

    known: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    configs: set[tuple[str, str]] = field(default_factory=set)

    def record(self, objects: Iterable[KubeObject]) -> None:
        """Record the templates and ConfigMaps among these objects."""
        for one in objects:
            if one.kind == "ConfigMap":
                self.configs.add((one.stem, one.namespace))
            if one.kind == TEMPLATE:
                spec = one.wire.get("spec")
                inner = spec.get("spec") if isinstance(spec, dict) else None
                self.add(one.stem, one.namespace, inner if isinstance(inner, dict) else {})

    def has_config(self, name: str, namespace: str) -> bool:
        """Return whether a ConfigMap of this name exists."""
        return (name, namespace) in self.configs

    def add(self, name: str, namespace: str, spec: Spec) -> None:
        """Record one template."""
        self.known.setdefault(name, []).append((namespace, _sign(spec)))

    def find(self, name: str, namespace: str, spec: Spec) -> bool | None:
        """Return True if the template of this name has this very spec, False if another, None if the name is free."""
        rows = [sign for there, sign in self.known.get(name, ()) if there == namespace or not there or not namespace]
        if not rows:
            return None
        return all(sign == _sign(spec) for sign in rows)


@dataclass(slots=True)
class ObjectTemplates:
    """Template names for one object's claim specs.

    With `has_roles` the names contain the role of the pod, too. `made` lists the templates that have to be written.
    """

    owner: KubeObject
    names: TemplateNames
    has_roles: bool
    made: list[tuple[str, Spec]] = field(default_factory=list)
    _used: dict[str, str] = field(default_factory=dict)

    def name(self, specs: list[Spec], role: str) -> list[str]:
        """Return the names of the templates of a pod, one for each of its claim specs."""
        return [self._one(spec, role) for spec in specs]

    def _one(self, spec: Spec, role: str) -> str:
        sign = _sign(spec)
        if sign in self._used:
            return self._used[sign]
        stem = f"{self.owner.stem.strip('-')}-{role}" if role and self.has_roles else self.owner.stem.strip("-")
        stem = f"{label(stem)}-gpu"
        refused: set[str] = set()
        name = stem
        while (there := self.names.find(name, self.owner.namespace, spec)) is False:
            refused.add(name)
            name = free_name(stem, refused)
        if there is None:
            self.names.add(name, self.owner.namespace, spec)
            self.made.append((name, spec))
        self._used[sign] = name
        return name


def _sign(spec: Spec) -> str:
    return json.dumps(spec, sort_keys=True)
