"""Sharing configurations of the device plugin, translated into rules of this driver.

In: a ConfigMap that holds files of the device plugin (`version: v1` with `sharing`). Out: a ConfigMap beside it with
one file for this driver, and the meaning of resource names that the files made up (`rename`) or that stand for shares
under the device's own name. The old ConfigMap stays, because nodes that the device plugin still serves read it. Where
one ConfigMap holds several files, a label of the node chooses between them, and the new rules use the same label.

Source: NVIDIA's device plugin, api/config/v1 and the label nvidia.com/device-plugin.config; docs/sharing.md.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.text.alignment import value_of
from dra_driver.base.text.written import documents_of
from dra_driver.tools.migrate.report import KubeObject, ReportSubject
from dra_driver.tools.migrate.resources import SHARED, DeviceKind, Known, kind_of, rows_of

FILE = "sharing.yaml"
_SUFFIX = "-sharing"
_NODE_LABEL = "nvidia.com/device-plugin.config"
_WAYS = {"timeSlicing": "TimeSlicing", "mps": "MPS"}
_VERSION = "rules/v1"
DOMAIN = "nvidia.com/"


def plugin_files(wire: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the device plugin's files in a ConfigMap, by key."""
    data = wire.get("data")
    found = {}
    for key, text in data.items() if isinstance(data, dict) else ():
        if isinstance(text, str) and "sharing" in text:
            parsed = _parsed(text)
            if isinstance(parsed, dict) and parsed.get("version") == "v1" and isinstance(parsed.get("sharing"), dict):
                found[key] = parsed
    return found


def _parsed(text: str) -> Any:
    try:
        documents = documents_of(text, "")
        return value_of(documents[0].root) if len(documents) == 1 else None
    except InputError:
        return None


def names_in(files: dict[str, dict[str, Any]]) -> Known:
    """Return the resource names that stand for shares: those that rows define, and devices' own names.

    A device's own name only stands for shares if one file serves all nodes.
    """
    found: dict[str, set[DeviceKind]] = {}
    for file in files.values():
        for section, row in _rows(file):
            name = _full(row.get("name")).removesuffix(SHARED)
            kind = kind_of(name)
            is_renamed = bool(row.get("rename") or section.get("renameByDefault"))
            if kind is None or not (is_renamed or (len(files) == 1 and _is_every(row))):
                continue
            shown = _full(row["rename"]) if row.get("rename") else f"{name}{SHARED if is_renamed else ''}"
            found.setdefault(shown, set()).add(replace(kind, is_share=True))
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}


def _full(name: Any) -> str:
    """Return a resource's name with its domain, added where it is missing as the device plugin does."""
    return name if isinstance(name, str) and name.startswith(DOMAIN) else f"{DOMAIN}{name}"


def _is_every(row: dict[str, Any]) -> bool:
    """Return whether a row concerns all devices of its kind."""
    return row.get("devices") is None or row["devices"] == "all"


def _rows(file: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for way in _WAYS:
        section = file["sharing"].get(way)
        if isinstance(section, dict) and isinstance(section.get("resources"), list):
            found += [(section, row) for _, row in rows_of(section["resources"])]
    return found


def rules_name(one: KubeObject) -> str:
    """Return the name of the ConfigMap with the rules."""
    return f"{one.stem}{_SUFFIX}"


def rules_beside(one: KubeObject, files: dict[str, dict[str, Any]], subject: ReportSubject) -> dict[str, Any] | None:
    """Return the ConfigMap with the rules; None if there are none. Report what has no counterpart in rules."""
    rules = []
    for key, file in files.items():
        for way, strategy in _WAYS.items():
            section = file["sharing"].get(way)
            if isinstance(section, dict):
                node = {_NODE_LABEL: key} if len(files) > 1 else {}
                rules += _rules(file, section, strategy, node, subject.below("data", key, "sharing", way))
    if not rules:
        return None
    name = rules_name(one)
    count = f"{len(rules)} rule{'s' if len(rules) > 1 else ''}"
    why = f"the agent reads it with --sharing-config; {one.stem} stays for nodes that the device plugin still serves"
    subject.changed("sharing-config", f"ConfigMap {name} was added, with {count} of this driver", why)
    _report_rename(files, subject)
    for resource, kind in sorted(names_in(files).items()):
        if kind != kind_of(resource):
            what = f"{resource} is read as a {kind.words}, in all files of this run"
            subject.changed(
                "shared-resource", what, "the file gives it that name on the nodes for which the file is meant"
            )
    subject.lost(
        "sharing-namespace",
        f"ConfigMap {name} has to be in the namespace of the driver",
        f"move it there if it is not, and install the chart with sharing.configMap={name}",
    )
    metadata = {"name": name, **({"namespace": one.namespace} if one.namespace else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {FILE: _text(rules)}}


def _rules(
    file: dict[str, Any], section: dict[str, Any], strategy: str, node: dict[str, str], place: ReportSubject
) -> list[dict[str, Any]]:
    made = []
    _report_section(section, place)
    flags = file.get("flags")
    is_single = isinstance(flags, dict) and flags.get("migStrategy") == "single"
    for number, row in rows_of(section.get("resources")):
        spot = place.below("resources", number)
        kind = kind_of(_full(row.get("name")))
        replicas = row.get("replicas")
        if kind is None or not isinstance(replicas, int) or replicas < 2:
            spot.lost("sharing-row", "this row shares no known device", "take it out, or write a rule by hand")
            continue
        if not _is_every(row):
            _report_devices(row, spot)
            continue
        types = {"types": ["gpu", "mig"] if is_single else ["gpu"]}
        match: dict[str, Any] = {"profiles": [kind.profile]} if kind.is_partition else types
        if node:
            match = {"nodeLabels": dict(node), **match}
        name = " ".join([*node.values(), strategy, str(row["name"])])
        made.append({"name": name, "match": match, "replicas": replicas, "sharing": {"strategy": strategy}})
    return made


def _report_section(section: dict[str, Any], place: ReportSubject) -> None:
    if section.get("failRequestsGreaterThanOne"):
        place.lost(
            "sharing-more-than-one",
            "failRequestsGreaterThanOne has no counterpart: a request for two shares gets two shares",
            "a ValidatingAdmissionPolicy can refuse such claims",
            "failRequestsGreaterThanOne",
        )


def _report_rename(files: dict[str, dict[str, Any]], place: ReportSubject) -> None:
    made_up = {_full(row["rename"]) for file in files.values() for _, row in _rows(file) if row.get("rename")}
    for name in sorted(made_up - set(names_in(files))):
        place.lost(
            "sharing-rename",
            f"the name {name} stands for different resources",
            f"in pods that ask for it, write the resource that they mean, with {SHARED}, and migrate them",
        )


def _report_devices(row: dict[str, Any], place: ReportSubject) -> None:
    place.lost(
        "sharing-devices",
        f"rules of this driver can't choose devices by number ({row['devices']})",
        "choose by name, product or node in a separate rule; or pass the device plugin's file to the agent unchanged",
        "devices",
    )


def _text(rules: list[dict[str, Any]]) -> str:
    from ruamel.yaml import YAML

    out = io.StringIO()
    yaml = YAML(pure=True)
    yaml.width = 4096
    yaml.dump({"version": _VERSION, "rules": rules}, out)
    return out.getvalue()
