"""What the API server shows: the objects that matter to this driver, and the fields behind feature gates that it keeps.

In: an API client. Out: `ClusterEvidence`; what the client may not read is listed as `Unexamined`, and nothing is
guessed. Nothing is changed: the questions about gates are dry runs.
Source: Kubernetes API concepts, dry-run; fields behind disabled gates are dropped silently at create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.doctor.finding import Unexamined
from dra_driver.doctor.gates import PROBES, has_field
from dra_driver.kube import pages, paths
from dra_driver.kube.api import KubeApi, ServerVersion
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import Since
from dra_driver.model.wire import Wire

SECONDS = 30.0

KINDS: dict[str, str] = {
    "nodes": paths.NODES,
    "namespaces": paths.NAMESPACES,
    # Claims are read before pods, so that a pod which reserves a claim exists by the time pods are read.
    "claims": paths.CLAIMS,
    "pods": paths.PODS,
    "events": paths.EVENTS,
    "slices": paths.SLICES,
    "classes": paths.CLASSES,
    "templates": paths.TEMPLATES,
    "policies": paths.POLICIES,
    "bindings": paths.POLICY_BINDINGS,
    "daemonsets": paths.DAEMON_SETS,
}
_USERS_KINDS = frozenset({"claims", "pods", "events", "templates"})  # kinds of objects that users have in namespaces
_SELECTED = {"events": "reason=FailedPrepareDynamicResources"}
# What an agent's ServiceAccount must be allowed to do: (group, resource, verb). Source: deploy/manifests/rbac.yaml.
RIGHTS = (
    ("resource.k8s.io", "resourceclaims", "get"),
    *(("resource.k8s.io", "resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")),
    ("", "nodes", "get"),
    ("", "events", "create"),
)
_LIST_CLAIMS = ("resource.k8s.io", "resourceclaims", "list")  # needed only if the chart's takeover.listClaims is set


@dataclass(frozen=True, slots=True)
class ClusterEvidence:
    """What was read from the API server.

    A kind that could not be read is missing from `objects`, and a gate that could not be asked about from `kept`.
    `rights` lists for each ServiceAccount of an agent which of `RIGHTS` it lacks. `rules_api` is the version of the API
    in which the server serves DeviceTaintRules that can delete nothing; "" if it serves none.
    """

    version: ServerVersion
    driver: str
    objects: Mapping[str, list[Wire]] = field(default_factory=dict)
    kept: Mapping[str, bool] = field(default_factory=dict)
    rights: Mapping[str, list[str]] = field(default_factory=dict)
    unseen: tuple[Unexamined, ...] = ()
    rules_api: str = ""

    def of(self, kind: str) -> list[Wire]:
        """Return the objects of one kind; none if they could not be read."""
        return self.objects.get(kind, [])

    def has(self, *kinds: str) -> bool:
        """Return whether all of these kinds were read."""
        return all(kind in self.objects for kind in kinds)


def read_cluster(api: KubeApi, driver: str, namespace: str = "", *, home: str = "") -> ClusterEvidence:
    """Read the cluster; if a namespace is given, only the claims and pods of this namespace.

    If the client may not read those of all namespaces, those of the namespace `home` are read. Raises: ApiError if the
    server can't be reached or does not accept the credentials (401).
    """
    version = api.server_version()
    objects: dict[str, list[Wire]] = {}
    unseen: list[Unexamined] = []
    for kind, path in KINDS.items():
        places = [namespace or "", *([home] if home and not namespace else [])] if kind in _USERS_KINDS else [""]
        for place in places:
            try:
                where = paths.within(path, place) if place else path
                objects[kind] = list(pages.objects(api, where, field_selector=_SELECTED.get(kind, "")))
                break
            except ApiError as error:
                if error.status in {0, 401}:
                    raise
                what = f"{kind} of namespace {place}" if place else f"{kind} of all namespaces" * (len(places) > 1)
                unseen.append(Unexamined(what or kind, _why(error)))
    _reread_claims(api, objects)
    kept, unasked = _ask_gates(api, driver, version.minor, objects.get("nodes", []))
    rights, unchecked = _ask_rights(api, objects.get("daemonsets", []))
    everything = (*unseen, *unasked, *unchecked)
    return ClusterEvidence(version, driver, objects, kept, rights, everything, _served_rules(api, version))


def _served_rules(api: KubeApi, version: ServerVersion) -> str:
    """Return in which version of the API the server serves rules that can delete nothing; "" if it does not.

    Alpha and beta versions of an API are off by default, whatever the gates are.
    """
    since = max((minor for minor in Since.TAINT_RULES if minor <= version.minor), default=0)
    wanted = Since.TAINT_RULES.get(since, "")
    if not wanted:
        return ""
    try:
        group = api.request("GET", paths.resource_group(wanted), timeout_s=SECONDS)
    except ApiError as error:
        if error.status in {0, 401}:
            raise
        return ""
    return wanted if any(one.get("name") == "devicetaintrules" for one in group.get("resources") or ()) else ""


def _reread_claims(api: KubeApi, objects: dict[str, list[Wire]]) -> None:
    """Read those claims again whose reserving pod is missing: the pod may have ended between the two lists."""
    pods = {one["metadata"].get("uid") for one in objects.get("pods", ())}
    for number, claim in enumerate(objects.get("claims", ()) if "pods" in objects else ()):
        users = (claim.get("status") or {}).get("reservedFor") or ()
        if all(one.get("resource") != "pods" or one.get("uid") in pods for one in users):
            continue
        metadata = claim["metadata"]
        path = paths.claim_path(str(metadata.get("namespace")), metadata["name"])
        try:
            objects["claims"][number] = api.request("GET", path, timeout_s=SECONDS)
        except ApiError:
            objects["claims"][number] = {**claim, "status": {}}


def agents(daemonsets: list[Wire]) -> list[Wire]:
    """Return the DaemonSets that run an agent, whatever their names are."""
    return [one for one in daemonsets if _label(one, "app.kubernetes.io/name") == "dra-driver"]


def _label(wire: Wire, name: str) -> Any:
    return (wire["metadata"].get("labels") or {}).get(name)


def _ask_gates(api: KubeApi, driver: str, minor: int, nodes: list[Wire]) -> tuple[dict[str, bool], list[Unexamined]]:
    node = nodes[0]["metadata"]["name"] if nodes else "node"
    kept: dict[str, bool] = {}
    unseen: list[Unexamined] = []
    for gate, probe in PROBES.items():
        path, body = probe.request(driver, node, minor)
        try:
            stored = api.request("POST", path, body=body, query={"dryRun": "All"}, timeout_s=SECONDS)
        except ApiError as error:
            unseen.append(Unexamined(f"gate {gate}", _why(error)))
        else:
            kept[gate] = has_field(probe, stored)
    return kept, unseen


def _ask_rights(api: KubeApi, daemonsets: list[Wire]) -> tuple[dict[str, list[str]], list[Unexamined]]:
    """Ask the API server which of `RIGHTS` each agent's ServiceAccount lacks."""
    lacking: dict[str, list[str]] = {}
    for daemonset in agents(daemonsets):
        template = daemonset["spec"]["template"]
        if (template["metadata"].get("labels") or {}).get("app.kubernetes.io/component", "agent") != "agent":
            continue
        account = template["spec"].get("serviceAccountName") or "default"
        user = f"system:serviceaccount:{daemonset['metadata']['namespace']}:{account}"
        try:
            needed = (*RIGHTS, _LIST_CLAIMS) if _lists_claims(template) else RIGHTS
            lacking[user] = [_named(right) for right in needed if not _is_allowed(api, user, right)]
        except ApiError as error:
            return lacking, [Unexamined(f"rights of {user}", _why(error))]
    return lacking, []


def _lists_claims(template: Wire) -> bool:
    env = (entry for container in template["spec"]["containers"] for entry in container.get("env") or ())
    return any((entry.get("name"), entry.get("value")) == ("TAKEOVER_LIST_CLAIMS", "true") for entry in env)


def _is_allowed(api: KubeApi, user: str, right: tuple[str, str, str]) -> bool:
    group, resource, verb = right
    spec = {"user": user, "resourceAttributes": {"group": group, "resource": resource, "verb": verb}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answered = api.request("POST", paths.ACCESS_REVIEWS, body=review, timeout_s=SECONDS)
    return bool((answered.get("status") or {}).get("allowed"))


def _named(right: tuple[str, str, str]) -> str:
    group, resource, verb = right
    return f"{verb} {resource}{f'.{group}' if group else ''}"


def _why(error: ApiError) -> str:
    return f"{error.message} [{error.code}]"
