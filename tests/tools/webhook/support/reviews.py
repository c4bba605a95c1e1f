"""AdmissionReviews, as an API server sends them."""

from __future__ import annotations

from typing import Any

DRIVER = "gpu.nvidia.com"


def config(driver: str = DRIVER, **sharing: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    if sharing:
        parameters["sharing"] = sharing
    return {"opaque": {"driver": driver, "parameters": parameters}}


def claim(*configs: Any, requests: Any = (), version: str = "v1") -> dict[str, Any]:
    spec = {"devices": {"requests": list(requests), "config": list(configs)}}
    metadata = {"name": "c", "namespace": "team"}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def template(*configs: Any, requests: Any = (), version: str = "v1") -> dict[str, Any]:
    made = claim(*configs, requests=requests, version=version)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def device_class(*configs: Any, expressions: Any = (), name: str = "x", version: str = "v1") -> dict[str, Any]:
    spec = {"config": list(configs), "selectors": [{"cel": {"expression": one}} for one in expressions]}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def request(*expressions: str, class_name: str = DRIVER, name: str = "gpu", version: str = "v1") -> dict[str, Any]:
    wanted = {"deviceClassName": class_name, "selectors": [{"cel": {"expression": one}} for one in expressions]}
    return {"name": name, **wanted} if version == "v1beta1" else {"name": name, "exactly": wanted}


def review(obj: Any, old: Any = None, operation: str = "CREATE") -> dict[str, Any]:
    kind = obj["kind"] if isinstance(obj, dict) and "kind" in obj else "ResourceClaim"
    asked = {
        "uid": "u-1",
        "kind": {"group": "resource.k8s.io", "version": "v1", "kind": kind},
        "operation": operation,
        "object": obj,
        "oldObject": old,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
