"""Manifests for other vendors' device plugins become claims of those vendors' classes."""

import pytest

from tests.migrate.support.pods import gpus, pod, requests, run


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("amd.com/gpu", "gpu.amd.com"),
        ("gpu.intel.com/i915", "gpu.intel.com"),
        ("gpu.intel.com/xe", "gpu.intel.com"),
    ],
)
def test_a_vendors_resource_becomes_a_claim_of_its_class(resource: str, expected: str) -> None:
    found, done = run(pod([gpus("a", 1, resource)]))
    templates = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    assert [list(requests(one).values()) for one in templates] == [[(expected, 1)]]
    assert {loss.code for loss in done.losses} <= {"topology-manager"}


def test_vendors_of_one_pod_are_requests_of_their_own_classes() -> None:
    found, _ = run(pod([gpus("a", 1), gpus("b", 1, "amd.com/gpu")]))
    templates = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    classes = {name for one in templates for name, _ in requests(one).values()}
    assert classes == {"gpu.nvidia.com", "gpu.amd.com"}


def test_labels_of_nvidias_gpus_stay_on_a_pod_of_another_vendor() -> None:
    selector = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    found, _ = run(pod([gpus("a", 1, "amd.com/gpu")], nodeSelector=selector))
    assert next(one for one in found if one["kind"] == "Pod")["spec"]["nodeSelector"] == selector
