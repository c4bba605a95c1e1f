"""Claims that are allocated to devices of a stand-in plugin, and pods that use them."""

from __future__ import annotations

from dra_driver.simulator.store import CLAIMS

DRIVER = "gpu.example.com"


def make_claim(api, name="c", *, devices=("d",), pods=("u1",), driver=DRIVER):
    requests = [{"name": f"r{i}", "exactly": {"deviceClassName": "x"}} for i in range(len(devices))]
    path = CLAIMS.path("default")
    made = api.request("POST", path, body={"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    results = [{"request": f"r{i}", "driver": driver, "pool": "n1", "device": d} for i, d in enumerate(devices)]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
    }
    return api.request("PUT", f"{path}/{name}/status", body={**made, "status": status})["metadata"]["uid"]


def pod(*claims, uid="u1", requests=()):
    uses = [{"name": claims[0], "request": r} for r in requests] or [{"name": name} for name in claims]
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
            "containers": [{"name": "main", "resources": {"claims": uses}}],
        },
    }
