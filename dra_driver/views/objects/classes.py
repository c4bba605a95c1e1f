"""DeviceClasses by name: from the given files, the cluster, or the chart.

In: class objects. Out: a class, or an error with the most similar name. The chart's own classes are in the folder
`deviceclasses`, which is beside the package in a checkout and inside it when installed.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import dra_driver
from dra_driver.model.errors import InputError
from dra_driver.model.wire import ClassWire
from dra_driver.views.objects.documents import Document, read_documents

_PACKAGE = Path(dra_driver.__file__).parent
_PLACES = (_PACKAGE / "deviceclasses", _PACKAGE.parent / "deviceclasses")


class Classes:
    """Classes, searched in this order: files, then the cluster, then the chart."""

    def __init__(self, files: list[Document], cluster: list[ClassWire] | None) -> None:
        self._known: dict[str, tuple[ClassWire, str]] = {}
        for document in shipped_classes() if cluster is None else []:
            self._known[document.name] = document.wire, "shipped"
        for wire in cluster or []:
            self._known[wire["metadata"]["name"]] = wire, "cluster"
        for document in files:
            self._known[document.name] = document.wire, "file"

    def find(self, name: str, wanted_by: str) -> ClassWire:
        """Return a class, for an object called `wanted_by` in the error. Raises: InputError("input.no-class")."""
        found = self._known.get(name)
        if found is None:
            near = get_close_matches(name, list(self._known), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                "no-class",
                f"{wanted_by} names DeviceClass {name!r}, which is neither in the files nor otherwise known",
                hint=f"{hint}known: {', '.join(sorted(self._known)) or 'none'}; add a file with the class",
            )
        return found[0]

    def of_extended_resource(self, resource: str) -> str | None:
        """Return the name of the class that serves an extended resource, or None if there is none.

        Source: Kubernetes API resource/v1 DeviceClassSpec.extendedResourceName and its implicit name.
        """
        implicit = resource.removeprefix("deviceclass.resource.kubernetes.io/")
        if implicit != resource:
            return implicit
        for name, (wire, _) in self._known.items():
            if (wire.get("spec") or {}).get("extendedResourceName") == resource:
                return name
        return None


def shipped_classes() -> list[Document]:
    """Read the chart's own classes; return none if the installation lacks them."""
    for folder in _PLACES:
        if folder.is_dir():
            return [one for one in read_documents([str(folder)]) if one.kind == "DeviceClass"]
    return []
