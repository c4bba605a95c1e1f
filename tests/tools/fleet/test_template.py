"""Templates of nodes: what every machine of a kind has, in a form that explain and the API server accept."""

import json

import pytest
import yaml

from dra_driver.tools.main import run

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        count: 8
"""


def written(capsys, *arguments: str) -> str:
    assert run(["slices", "--as-template", *arguments]) == 0
    return str(capsys.readouterr().out)


def test_a_template_has_nothing_that_only_one_machine_has(capsys):
    text = written(capsys, "--fleet", "dgx-h100", "--kubernetes", "1.36")
    slices = list(yaml.safe_load_all(text))
    devices = [device for one in slices for device in one["spec"].get("devices", ())]
    names = {name for device in devices for name in device["attributes"]}
    assert {"type", "productName", "resource.kubernetes.io/numaNode", "nvlinkDomain"} <= names
    assert not names & {"uuid", "parentUUID", "serial", "vbiosVersion", "driverVersion", "cudaDriverVersion"}
    assert "dgx-h100-1" not in text.split("---", 1)[1]
    assert {one["spec"]["nodeName"] for one in slices} == {"template-node"}
    assert any(one["spec"].get("sharedCounters") for one in slices)
    (domain,) = {d["attributes"]["nvlinkDomain"]["string"] for d in devices if "nvlinkDomain" in d["attributes"]}
    assert domain == "template-node-0"


def test_a_claim_fits_a_template_as_it_fits_the_node(capsys, tmp_path):
    (tmp_path / "template.yaml").write_text(written(capsys, "--fleet", "dgx-h100"))
    (tmp_path / "claim.yaml").write_text(CLAIM)
    assert run(["explain", "-f", str(tmp_path / "template.yaml"), "-f", str(tmp_path / "claim.yaml")]) == 0


def test_a_template_of_a_clusters_node_has_no_taints_and_no_old_generations(capsys, tmp_path):
    def slice_of(node: str, generation: int, device: str) -> dict:
        pool = {"name": f"{node}/gpu.nvidia.com", "generation": generation, "resourceSliceCount": 1}
        taints = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
        device_wire = {"name": device, "attributes": {"type": {"string": "gpu"}}, "taints": taints}
        spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [device_wire]}
        name = {"name": f"{node}-{generation}"}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": name, "spec": spec}

    slices = [slice_of("gpu-7", 3, "gpu-a"), slice_of("gpu-7", 2, "gpu-b"), slice_of("gpu-8", 1, "gpu-c")]
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump_all(slices))
    (template,) = json.loads(
        written(capsys, "-f", str(tmp_path / "slices.yaml"), "--node", "gpu-7", "--output", "json")
    )["items"]
    assert template["spec"]["pool"]["name"] == "template-node/gpu.nvidia.com"
    assert template["spec"]["devices"] == [{"name": "gpu-a", "attributes": {"type": {"string": "gpu"}}}]


def test_annotations_name_the_driver_that_has_gpus(capsys, tmp_path):
    def slice_of(driver: str, kind: str) -> dict:
        pool = {"name": f"n/{driver}", "generation": 1, "resourceSliceCount": 1}
        device = {"name": "d", "attributes": {"type": {"string": kind}}}
        spec = {"driver": driver, "nodeName": "n", "pool": pool, "devices": [device]}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"n-{driver}"}}
        return {**head, "spec": spec}

    path = tmp_path / "slices.yaml"
    path.write_text(yaml.safe_dump_all([slice_of("gpu.nvidia.com", "gpu"), slice_of("nic.example.com", "nic")]))
    said = written(capsys, "-f", str(path))
    assert 'dra-driver: "gpu.nvidia.com"' in said
    assert 'gpu-count: "1"' in said
    path.write_text(yaml.safe_dump_all([slice_of("nic.example.com", "nic")]))
    assert "capacity.cluster-autoscaler" not in written(capsys, "-f", str(path))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--fleet", "dgx-h100=2"], "2 nodes were found"),
        (["--fleet", "dgx-h100", "--node", "a", "--node", "b"], "2 nodes were named"),
        (["--fleet", "dgx-h100", "--node", "nowhere"], "node nowhere has no ResourceSlice"),
    ],
)
def test_a_template_is_of_one_node(capsys, arguments, what):
    assert run(["slices", "--as-template", *arguments]) == 3
    assert what in capsys.readouterr().err
