"""The examples for virtual machines and IMEX channels: the node's file, configs, classes and namespaces' labels."""

from pathlib import Path

import yaml

from dra_driver.node.claims.config import validate
from dra_driver.node.devices.rules_files import read_passthrough_rules

ROOT = Path(__file__).parents[3]
CLAIMS = sorted([*ROOT.glob("examples/virtual-machines/*.yaml"), *ROOT.glob("examples/multi-node-nvlink/*.yaml")])


def specs():
    for path in CLAIMS:
        for one in yaml.safe_load_all(path.read_text()):
            if one["kind"] == "ResourceClaimTemplate":
                yield one["metadata"]["namespace"], one["spec"]["spec"]["devices"]


def test_the_agent_can_read_the_file_for_nodes():
    first, second = read_passthrough_rules(ROOT / "examples/virtual-machines/node/gpus.yaml").rules
    assert (first.is_only_passed, second.is_only_passed) == (False, True)
    assert first.nodes == ("vm-*",)


def test_every_config_is_valid_and_every_class_is_shipped():
    assert len(list(specs())) == 4
    for _, devices in specs():
        for entry in devices.get("config", ()):
            assert validate(entry["opaque"]["parameters"]) == []
        for request in devices["requests"]:
            assert (ROOT / f"deviceclasses/{request['exactly']['deviceClassName']}.yaml").exists()


def test_every_namespace_has_the_label_that_its_class_needs():
    labels = {
        "vfio.gpu.nvidia.com": "gpu.nvidia.com/passthrough",
        "vfio.gpu.amd.com": "gpu.amd.com/passthrough",
        "gpu-vfio.intel.com": "gpu.intel.com/passthrough",
        "imex-channel.nvidia.com": "gpu.nvidia.com/imex-channel",
    }
    every = [one for path in CLAIMS for one in yaml.safe_load_all(path.read_text())]
    given = {one["metadata"]["name"]: one["metadata"]["labels"] for one in every if one["kind"] == "Namespace"}
    for namespace, devices in specs():
        for request in devices["requests"]:
            label = labels.get(request["exactly"]["deviceClassName"])
            assert label is None or given[namespace][label] == "true"
