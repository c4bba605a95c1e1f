"""Opaque configs of AMD's API group, as users write them."""

from typing import Any

import pytest

from dra_driver.base.errors import ClaimError
from dra_driver.node.claims.allocated import decode_claim
from dra_driver.node.claims.config import decode_config, validate
from dra_driver.node.claims.device_config import API_VERSION, IommuSettings

GROUP = "gpu.resource.amd.com/v1alpha1"


def gpu(**more: Any) -> dict[str, Any]:
    return {"apiVersion": GROUP, "kind": "GpuConfig", **more}


def test_a_config_of_amds_driver_is_accepted_as_it_is() -> None:
    plain = decode_config(gpu())
    assert (plain.kind, plain.compute_units, plain.settings) == ("GpuConfig", None, None)
    passed = {"apiVersion": GROUP, "kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "PreferIommuFD"}}
    assert decode_config(passed).iommu == IommuSettings(prefers_iommufd=True)


@pytest.mark.parametrize("parameters", [gpu(), gpu(computeUnits={"count": 38})])
def test_a_config_is_read_back_from_its_record(parameters: dict[str, Any]) -> None:
    config = decode_config(parameters)
    assert config.record() == parameters
    assert decode_config(config.record()) == config


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        (gpu(computeUnits={"count": 0}), "parameters.computeUnits.count: must be a whole number from 1 to 4096, is 0"),
        (gpu(computeUnits={"count": True}), "is True"),
        (gpu(computeUnits={"count": 1.5}), "is a number"),
        (gpu(computeUnits={"count": 10**400}), "is a number"),
        (gpu(computeUnits={}), "is null"),
        (gpu(computeUnits=38), "parameters.computeUnits: must be an object with the field count, is a number"),
        (gpu(computeUnits={"count": 2, "mask": "0x3"}), "parameters.computeUnits.mask: unknown field; known is count"),
        (gpu(sharing={"strategy": "MPS"}), "parameters.sharing: unknown field"),
        ({"apiVersion": GROUP, "kind": "MigDeviceConfig"}, "must be one of GpuConfig, VfioDeviceConfig"),
        ({"apiVersion": GROUP, "kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "x"}}, "backendPolicy"),
        ({"apiVersion": "gpu.resource.amd.com/v2", "kind": "GpuConfig"}, "parameters.apiVersion: must be"),
    ],
)
def test_a_fault_is_named_with_its_path(parameters: dict[str, Any], fault: str) -> None:
    (found,) = validate(parameters)
    assert fault in str(found)


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.intel.com", "gaudi.intel.com"])
def test_a_config_of_amds_group_for_another_vendors_driver_is_refused_by_its_version(driver):
    (fault, *more) = validate({"apiVersion": GROUP, "kind": "GpuConfig"}, "parameters", driver)
    assert str(fault).startswith("parameters.apiVersion: must be resource.nvidia.com/v1beta1")
    assert more == []
    units = {"apiVersion": GROUP, "kind": "GpuConfig", "computeUnits": {"count": 4}}
    assert {one.path for one in validate(units, "it", driver)} == {"it.apiVersion", "it.computeUnits"}


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
@pytest.mark.parametrize("driver", ["gpu.amd.com", "gpu.intel.com", "gaudi.intel.com"])
def test_mps_is_refused_for_the_driver_of_another_vendor(driver, kind):
    parameters = {"apiVersion": API_VERSION, "kind": kind, "sharing": {"strategy": "MPS"}}
    (fault,) = validate(parameters, "parameters", driver)
    assert str(fault) == f"parameters.sharing.strategy: MPS is for NVIDIA's GPUs, not for devices of {driver}"
    claim = {
        "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
        "spec": {},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"request": "r", "driver": driver, "pool": "p", "device": "d"}],
                    "config": [{"source": "FromClass", "opaque": {"driver": driver, "parameters": parameters}}],
                }
            }
        },
    }
    with pytest.raises(ClaimError, match="MPS is for NVIDIA's GPUs") as caught:
        decode_claim(claim, driver=driver, uid="u")
    assert caught.value.code == "claim.bad-config"
    sliced = {**parameters, "sharing": {"strategy": "TimeSlicing"}}
    assert validate(sliced, "parameters", driver) == []
    for other in ("gpu.nvidia.com", "gpu.example.com", ""):
        assert validate(parameters, "parameters", other) == []


@pytest.mark.parametrize("driver", ["gpu.amd.com", "amd.example.com", ""])
def test_a_config_of_amds_group_is_accepted_for_a_driver_under_any_other_name(driver):
    units = {"apiVersion": GROUP, "kind": "GpuConfig", "computeUnits": {"count": 4}}
    assert validate(units, "parameters", driver) == []
