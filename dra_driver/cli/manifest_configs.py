"""Validate the configs for devices in manifests, as the nodes and the webhook validate them.

In: a file with ResourceClaims, templates, device classes and other objects. Out: a line for each config, or every
fault. A config for a driver of another vendor is not validated, and its line says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dra_driver.model.errors import DriverError, InputError
from dra_driver.model.vendors import VENDORS


def has_objects(path: Path) -> bool:
    """Return whether a file contains Kubernetes objects."""
    try:
        return any(_is_object(wire) for wire in _objects(path))
    except DriverError:
        return False


def read_manifest_configs(path: Path) -> list[str]:
    """Return a line for each config in the objects of a file. Raises: InputError("input.bad-config")."""
    from dra_driver.webhook.objects import KINDS

    lines: list[str] = []
    faults: list[str] = []
    for wire in _objects(path):
        if wire.get("kind") in KINDS:
            _validate(wire, lines, faults)
    if faults:
        raise InputError(
            "bad-config", f"{path}: {'; '.join(faults)}", hint="docs/device-configs.md says what a config may have"
        )
    return lines or ["no config for a device"]


def _validate(wire: Any, lines: list[str], faults: list[str]) -> None:
    from dra_driver.claims.config.reading import validate
    from dra_driver.webhook.objects import opaque_configs

    metadata = wire.get("metadata")
    name = f"{wire['kind']} {metadata.get('name') if isinstance(metadata, dict) else '?'}"
    for config in opaque_configs(wire["kind"], wire):
        if config.driver not in {vendor.driver for vendor in VENDORS}:
            lines.append(f"{name}: {config.path}: not validated, because {config.driver} is not one of our drivers")
            continue
        found = validate(config.parameters, config.path, config.driver)
        faults += [f"{name}: {fault}" for fault in found]
        lines.append(f"{name}: {config.path}: for {config.driver}")


def _is_object(wire: Any) -> bool:
    return isinstance(wire, dict) and isinstance(wire.get("apiVersion"), str) and isinstance(wire.get("kind"), str)


def _objects(path: Path) -> Iterator[Any]:
    from dra_driver.documents.document import STANDARD_INPUT, read_document
    from dra_driver.views.objects.documents import read_documents

    if path == STANDARD_INPUT:  # read once, as one document
        yield read_document(path)
    else:
        yield from (one.wire for one in read_documents([str(path)]))
