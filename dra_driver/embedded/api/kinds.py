"""Kinds: the objects that the embedded API serves, and their paths.

In: an HTTP path. Out: the kind and the object that it names. Source: Kubernetes API conventions on resource paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.embedded.api_rules.refusals import unknown_path
from dra_driver.model.wire import Wire


@dataclass(frozen=True, slots=True)
class ApiKind:
    """One served kind. `selectable` lists the field selectors besides metadata.name and metadata.namespace."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool
    has_status: bool = False
    has_generation: bool = False
    selectable: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """The group and version, such as `resource.k8s.io/v1`; `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name that messages use, such as `resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the URL path of one object; without `name`, that of the collection."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


_DRA = "resource.k8s.io"
LEASES = ApiKind("coordination.k8s.io", "v1", "leases", "Lease", is_namespaced=True)
NODES = ApiKind("", "v1", "nodes", "Node", is_namespaced=False, has_status=True)
NAMESPACES = ApiKind("", "v1", "namespaces", "Namespace", is_namespaced=False, has_status=True)
PODS = ApiKind(
    "", "v1", "pods", "Pod", is_namespaced=True, has_status=True, selectable=("spec.nodeName", "status.phase")
)
EVENTS = ApiKind(
    "",
    "v1",
    "events",
    "Event",
    is_namespaced=True,
    selectable=("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason"),
)
SLICES = ApiKind(
    _DRA,
    "v1",
    "resourceslices",
    "ResourceSlice",
    is_namespaced=False,
    has_generation=True,
    selectable=("spec.nodeName", "spec.driver"),
)
CLAIMS = ApiKind(_DRA, "v1", "resourceclaims", "ResourceClaim", is_namespaced=True, has_status=True)
TEMPLATES = ApiKind(_DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", is_namespaced=True)
CLASSES = ApiKind(_DRA, "v1", "deviceclasses", "DeviceClass", is_namespaced=False, has_generation=True)

KINDS = (NODES, NAMESPACES, PODS, EVENTS, LEASES, SLICES, CLAIMS, TEMPLATES, CLASSES)
_BY_PATH = {(k.group, k.version, k.plural): k for k in KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in KINDS}


@dataclass(frozen=True, slots=True)
class Target:
    """What a path refers to. `name` is "" for a collection; `subresource` is "" or "status"."""

    kind: ApiKind
    namespace: str
    name: str
    subresource: str


def kind_of(wire: Wire) -> ApiKind:
    """Return the kind of an object by its apiVersion and kind. Raises: ApiRefusal 404 if it is not served."""
    try:
        return _BY_KIND[wire["apiVersion"], wire["kind"]]
    except KeyError:
        raise unknown_path() from None


def parse_path(path: str) -> Target:
    """Return what a URL path refers to. Raises: ApiRefusal 404 for anything that is not served."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise unknown_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = _BY_PATH.get((group, version, rest[0]))
    if kind is None or len(rest) > 3 or (namespace and not kind.is_namespaced):
        raise unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if (subresource and not (subresource == "status" and kind.has_status)) or (
        name and kind.is_namespaced and not namespace
    ):
        raise unknown_path()
    return Target(kind, namespace, name, subresource)
