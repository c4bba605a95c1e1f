"""Pods: the claims of a pod are created from templates, and released when the pod ends, as the controllers do it.

In: a pod in the API. Out: claims in the API. Source: kube-controller-manager resourceclaim controller.
"""

from __future__ import annotations

import random

from dra_driver.embedded.api.kinds import CLAIMS, PODS, TEMPLATES
from dra_driver.embedded.api.port import Api
from dra_driver.embedded.pod_claims import claim_name
from dra_driver.model.wire import ClaimWire, Wire

FINALIZER = "resource.kubernetes.io/delete-protection"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def make_claims(api: Api, pod: Wire) -> Wire:
    """Create the claims that a pod requests by template, and return the pod with their names in its status."""
    metadata, statuses = pod["metadata"], []
    namespace = metadata["namespace"]
    for entry in pod["spec"].get("resourceClaims") or []:
        if "resourceClaimTemplateName" not in entry:
            continue
        template = api.request("GET", TEMPLATES.path(namespace, entry["resourceClaimTemplateName"]))
        made = api.request("POST", CLAIMS.path(namespace), body=_claim(metadata, entry["name"], template["spec"]))
        statuses.append({"name": entry["name"], "resourceClaimName": made["metadata"]["name"]})
    if not statuses:
        return pod
    status = {**(pod.get("status") or {}), "resourceClaimStatuses": statuses}
    return api.request("PUT", PODS.path(namespace, metadata["name"]) + "/status", body={**pod, "status": status})


def _claim(pod: Wire, entry: str, template: Wire) -> ClaimWire:
    """Return the claim that an entry of a pod requests by a template; `pod` is the pod's metadata."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    extra = template.get("metadata") or {}
    return {
        "metadata": {
            "name": f"{pod['name']}-{entry}-{''.join(random.choices(_SUFFIX, k=5))}",  # noqa: S311
            "labels": extra.get("labels") or {},
            "annotations": {**(extra.get("annotations") or {}), "resource.kubernetes.io/pod-claim-name": entry},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template.get("spec") or {},
    }


def claims_of(api: Api, pod: Wire) -> list[ClaimWire]:
    """Return the claims of a pod, in the order in which the pod lists them."""
    namespace = pod["metadata"]["namespace"]
    names = [claim_name(pod, entry) for entry in pod["spec"].get("resourceClaims") or []]
    return [api.request("GET", CLAIMS.path(namespace, name)) for name in dict.fromkeys(names)]


def end_pod(api: Api, pod: Wire) -> None:
    """End a pod: remove its reservations, deallocate the claims without any reservation, and delete the pod."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    for claim in claims_of(api, pod):
        path = CLAIMS.path(namespace, claim["metadata"]["name"])
        status = dict(claim.get("status") or {})
        status["reservedFor"] = [user for user in status.get("reservedFor") or [] if user["uid"] != uid]
        if not status["reservedFor"]:
            status = {}
        claim = api.request("PUT", path + "/status", body={**claim, "status": status})  # noqa: PLW2901
        if not status and FINALIZER in (claim["metadata"].get("finalizers") or []):
            claim["metadata"]["finalizers"].remove(FINALIZER)
            api.request("PUT", path, body=claim)
    api.request("DELETE", PODS.path(namespace, pod["metadata"]["name"]))
