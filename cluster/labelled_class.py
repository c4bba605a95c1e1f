"""LabelledClass: a class of the chart whose devices policies keep to labelled namespaces, on a real cluster.

In: what to set in the chart, and a template that asks for the class. Out: the class, the policies, and a second class
for the same devices, on the API server until the scenario ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.api import Object, Refused
from cluster.chart import rendered
from cluster.cluster import Cluster
from cluster.sandbox import until


def refusal(cluster: Cluster, content: Object) -> str:
    """Return why an object is refused in a dry run; empty when it is not."""
    try:
        cluster.api.create(content, dryRun="All")
    except Refused as refused:
        return str(refused)
    return ""


@dataclass(frozen=True)
class LabelledClass:
    """The class `name` for devices of type `kind`, from the chart's `template` with `values`; `wide` is the second."""

    name: str
    wide: str
    label: str
    kind: str
    template: str
    values: str
    driver: str = "gpu.nvidia.com"

    @contextmanager
    def enforced(self, cluster: Cluster, asking: Object, file: Path) -> Iterator[None]:
        """Apply the class and its policies until `asking` is refused, and remove all that was made in the end."""
        file.write_text(yaml.safe_dump_all([*self._rendered(), self._wide_class()]))
        cluster.kubectl("apply", "-f", str(file))
        until("the policies are enforced", lambda: bool(refusal(cluster, asking)), 30)
        yield
        namespace = asking["metadata"]["namespace"]
        for kind in ("Pod", "ResourceClaimTemplate", "ResourceClaim"):
            cluster.api.call("DELETE", cluster.api.path(kind, namespace=namespace))
        until("no claim is left", lambda: not cluster.api.list("ResourceClaim", namespace), 90)
        cluster.kubectl("delete", "-f", str(file))

    def set_label(self, cluster: Cluster, namespace: str, value: str | None) -> None:
        """Set the label that lets a namespace use the class; None removes it."""
        cluster.api.patch("Namespace", namespace, "", {"metadata": {"labels": {self.label: value}}})

    def _rendered(self) -> list[Object]:
        made = rendered(self.template, "deviceclasses.yaml", values=self.values)
        found = [one for one in made if one["kind"] != "ConfigMap"]
        return [one for one in found if one["kind"] != "DeviceClass" or one["metadata"]["name"] == self.name]

    def _wide_class(self) -> Object:
        of_type = f'device.attributes["{self.driver}"].type == "{self.kind}"'
        selector = {"cel": {"expression": f'device.driver == "{self.driver}" && {of_type}'}}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": self.wide}}
        return head | {"spec": {"selectors": [selector]}}
