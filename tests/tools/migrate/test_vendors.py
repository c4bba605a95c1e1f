"""Manifests for other vendors' device plugins become claims of those vendors' classes."""

import pytest

from tests.tools.migrate.support.pods import gpus, pod, requests, run


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("amd.com/gpu", "gpu.amd.com"),
        ("gpu.intel.com/i915", "gpu.intel.com"),
        ("gpu.intel.com/xe", "gpu.intel.com"),
        ("habana.ai/gaudi", "gaudi.intel.com"),
    ],
)
def test_a_vendors_resource_becomes_a_claim_of_its_class(resource: str, expected: str) -> None:
    found, done = run(pod([gpus("a", 1, resource)]))
    templates = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    assert [list(requests(one).values()) for one in templates] == [[(expected, 1)]]
    assert {loss.code for loss in done.losses} <= {"topology-manager"}


def test_resources_of_two_vendors_in_one_pod_become_requests_of_their_own_classes() -> None:
    found, _ = run(pod([gpus("a", 1), gpus("b", 1, "amd.com/gpu")]))
    templates = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    classes = {name for one in templates for name, _ in requests(one).values()}
    assert classes == {"gpu.nvidia.com", "gpu.amd.com"}


def test_labels_of_nvidias_gpus_stay_on_a_pod_of_another_vendor() -> None:
    selector = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    found, _ = run(pod([gpus("a", 1, "amd.com/gpu")], nodeSelector=selector))
    assert next(one for one in found if one["kind"] == "Pod")["spec"]["nodeSelector"] == selector


def request_of(resource: str, count: int = 1) -> tuple[dict, set[str]]:
    """Return the only request that a pod's resource becomes, and the codes of what is lost."""
    found, done = run(pod([gpus("a", count, resource)]))
    (template,) = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    (row,) = template["spec"]["spec"]["devices"]["requests"]
    return row["exactly"], {loss.code for loss in done.losses}


def expressions(exactly: dict) -> list[str]:
    return [row["cel"]["expression"] for row in exactly.get("selectors", ())]


@pytest.mark.parametrize("mode", ["cpx_nps4", "dpx_nps2", "cpx_nps1", "qpx_nps1", "tpx_nps1"])
def test_a_partition_of_amds_plugin_becomes_a_partition_of_a_gpu_in_that_mode(mode: str) -> None:
    exactly, _ = request_of(f"amd.com/{mode}", 2)
    assert (exactly["deviceClassName"], exactly["count"]) == ("gpu.amd.com", 2)
    assert expressions(exactly) == [
        f'device.attributes["gpu.amd.com"].?partitionProfile.orValue("") == "{mode}"',
        'device.attributes["gpu.amd.com"].?type.orValue("") == "amdgpu-partition"',
    ]


def test_an_undivided_gpu_of_amds_plugin_is_requested_by_its_mode_alone() -> None:
    exactly, _ = request_of("amd.com/spx_nps1")
    assert expressions(exactly) == ['device.attributes["gpu.amd.com"].?partitionProfile.orValue("") == "spx_nps1"']


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_intels_resources_keep_their_kernel_driver(driver: str) -> None:
    exactly, _ = request_of(f"gpu.intel.com/{driver}")
    assert expressions(exactly) == [f'device.attributes["gpu.intel.com"].?driver.orValue("") == "{driver}"']


@pytest.mark.parametrize("driver", ["i915", "xe"])
def test_intels_monitoring_becomes_a_request_of_all_devices_with_admin_access(driver: str) -> None:
    exactly, codes = request_of(f"gpu.intel.com/{driver}_monitoring", 3)
    assert (exactly["allocationMode"], exactly["adminAccess"], "count" in exactly) == ("All", True, False)
    assert expressions(exactly) == [f'device.attributes["gpu.intel.com"].?driver.orValue("") == "{driver}"']
    assert "admin-access" in codes


def test_a_container_that_computes_and_monitors_has_a_request_for_each() -> None:
    limits = {"gpu.intel.com/xe": 1, "gpu.intel.com/xe_monitoring": 1}
    found, _ = run(pod([{"name": "a", "image": "i", "resources": {"limits": limits}}]))
    (template,) = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    rows = template["spec"]["spec"]["devices"]["requests"]
    assert [(row["name"], row["exactly"].get("adminAccess", False)) for row in rows] == [
        ("gpu", False),
        ("monitor", True),
    ]


@pytest.mark.parametrize("resource", ["gpu.intel.com/millicores", "amd.com/gpu_vf", "habana.ai/goya", "amd.com/xx_nps"])
def test_an_unknown_resource_of_a_plugins_domain_stays_and_is_reported(resource: str) -> None:
    wire = pod([gpus("a", 1, resource), gpus("b", 1, "amd.com/gpu")])
    found, done = run(wire)
    after = next(one for one in found if one["kind"] == "Pod")
    assert after["spec"]["containers"][0]["resources"]["limits"] == {resource: 1}
    assert [loss.code for loss in done.losses if resource in loss.what] == ["unknown-resource"]


def test_labels_of_amds_node_labeller_stay_and_are_reported() -> None:
    selector = {"amd.com/compute-memory-partition": "cpx_nps4"}
    found, done = run(pod([gpus("a", 1, "amd.com/cpx_nps4")], nodeSelector=selector))
    assert next(one for one in found if one["kind"] == "Pod")["spec"]["nodeSelector"] == selector
    assert ["AMD's node labeller" in loss.what for loss in done.losses if loss.code == "mention"] == [True]


def test_quotas_of_other_vendors_count_devices_of_their_classes() -> None:
    hard = {"requests.habana.ai/gaudi": "8", "requests.amd.com/gpu": "4", "requests.gpu.intel.com/xe_monitoring": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    (found,), _ = run(quota)
    assert found["spec"]["hard"] == {
        "gaudi.intel.com.deviceclass.resource.k8s.io/devices": "8",
        "gpu.amd.com.deviceclass.resource.k8s.io/devices": "4",
    }


@pytest.mark.parametrize("resource", ["amd.com/gpu", "amd.com/cpx_nps4", "gpu.intel.com/i915", "habana.ai/gaudi"])
def test_a_second_run_changes_nothing_and_mentions_in_patches_are_reported(resource: str) -> None:
    found, _ = run(pod([gpus("a", 1, resource)]))
    again, done = run(*found)
    assert (again, done.changes) == (found, ())
    patch = f'[{{"op": "add", "path": "/spec/resources/limits/{resource.replace("/", "~1")}", "value": 1}}]'
    _, done = run(
        {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"patch": patch}}
    )
    assert [resource in loss.what for loss in done.losses] == [True]
