"""Opaque configs: what is accepted, and every way to be wrong, with the field's path."""

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError
from dra_driver.base.wire import DeviceType, Interval, MpsSettings, SharingSettings, TimeSlicingSettings
from dra_driver.node.claims.config import decode_config, validate
from dra_driver.node.claims.device_config import API_VERSION, DeviceConfig


def parameters(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def faults(wire: Any) -> tuple[str, str]:
    with pytest.raises(ClaimError) as caught:
        decode_config(wire)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(("kind", "type_"), [("GpuConfig", DeviceType.GPU), ("MigDeviceConfig", DeviceType.MIG)])
@pytest.mark.parametrize("more", [{}, {"sharing": None}])
def test_an_empty_config_is_accepted(kind: str, type_: DeviceType, more: dict[str, Any]) -> None:
    config = decode_config(parameters(kind, **more))
    assert config == DeviceConfig(kind)
    assert config.device_type is type_
    assert decode_config(config.record()) == config


MIB = 1 << 20
SHARINGS = [
    ({"strategy": "TimeSlicing"}, TimeSlicingSettings()),
    ({"strategy": "TimeSlicing", "timeSlicingConfig": None}, TimeSlicingSettings()),
    ({"strategy": "TimeSlicing", "timeSlicingConfig": {}}, TimeSlicingSettings()),
    ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}, TimeSlicingSettings(Interval.LONG)),
    ({"strategy": "MPS"}, MpsSettings()),
    ({"strategy": "MPS", "mpsConfig": {}}, MpsSettings()),
    (
        {
            "strategy": "MPS",
            "mpsConfig": {
                "defaultActiveThreadPercentage": 50,
                "defaultPinnedDeviceMemoryLimit": "10Gi",
                "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-4f3e": 3 * MIB + 1},
                "multiUser": True,
            },
        },
        MpsSettings(50, 10240 * MIB, {"0": 1024 * MIB, "GPU-4f3e": 3 * MIB}, multi_user=True),
    ),
]


@pytest.mark.parametrize(("sharing", "settings"), SHARINGS)
def test_sharing_is_read_with_defaults_filled_in(sharing: dict[str, Any], settings: SharingSettings) -> None:
    config = decode_config(parameters(sharing=sharing))
    assert config == DeviceConfig("GpuConfig", settings)
    assert decode_config(config.record()) == config
    assert validate(parameters(sharing=sharing)) == []


def test_a_mig_device_has_no_interval() -> None:
    config = decode_config(parameters("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}))
    assert config == DeviceConfig("MigDeviceConfig", TimeSlicingSettings())
    assert decode_config(config.record()) == config


def test_admission_and_node_report_the_same_faults() -> None:
    wrong = parameters("GpuConfig", colour="red", sharing={"strategy": "MPS", "timeSlicingConfig": {"interval": "x"}})
    messages = [str(fault) for fault in validate(wrong, "spec.config[0]")]
    with pytest.raises(ClaimError) as caught:
        decode_config(wrong, "spec.config[0]")
    assert caught.value.message == "opaque config: " + "; ".join(messages)
    assert sorted(text.partition(":")[0] for text in messages) == [
        "spec.config[0].colour",
        "spec.config[0].sharing.timeSlicingConfig",
        "spec.config[0].sharing.timeSlicingConfig.interval",
    ]


def test_pydantic_is_imported_with_the_first_config_only() -> None:
    program = (
        "import sys\n"
        "import dra_driver.node.kubelet.server, dra_driver.node.prepare.preparer\n"
        "from dra_driver.node.claims.allocated import decode_claim\n"
        "from dra_driver.node.claims.device_config import API_VERSION\n"
        "def claim(*configs):\n"
        "    result = {'request': 'r', 'driver': 'd', 'pool': 'p', 'device': 'g'}\n"
        "    allocation = {'devices': {'results': [result], 'config': list(configs)}}\n"
        "    wire = {'metadata': {'uid': 'u'}, 'status': {'allocation': allocation}}\n"
        "    return decode_claim(wire, driver='d', uid='u')\n"
        "def opaque(driver):\n"
        "    return {'opaque': {'driver': driver, 'parameters': {'apiVersion': API_VERSION, 'kind': 'GpuConfig'}}}\n"
        "claim(opaque('another'))\n"
        "assert 'pydantic' not in sys.modules\n"
        "claim(opaque('d'))\n"
        "assert 'pydantic' in sys.modules\n"
        "assert not {'click', 'rich', 'celpy', 'kubernetes'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("kind", ["ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"])
def test_kinds_of_other_features_are_refused_as_not_supported_yet(kind: str) -> None:
    code, message = faults(parameters(kind, iommu={}))
    assert code == "claim.config-not-supported"
    assert f"parameters.kind: {kind} is not supported by this driver" in message


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        (None, "parameters: must be an object, is null"),
        ([], "parameters: must be an object, is a list"),
        ({}, "parameters.kind: must be one of GpuConfig"),
        ({"kind": "GpuConfig"}, "parameters.apiVersion: must be resource.nvidia.com/v1beta1, is missing"),
        ({"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}, "is 'resource.nvidia.com/v1'"),
        (parameters("gpuconfig"), "parameters.kind: must be one of GpuConfig"),
        (parameters(sharring={}), "parameters.sharring: unknown field; known are apiVersion, kind, sharing"),
        (parameters(metadata={}), "parameters.metadata: unknown field"),
        (parameters(**{"a\x1b[2J": 1}), r"parameters.'a\x1b[2J': unknown field"),
        (parameters(sharing=[]), "parameters.sharing: must be an object, is a list"),
        (parameters(sharing={}), "parameters.sharing.strategy: must be one of TimeSlicing, MPS, is missing"),
        (parameters(sharing={"strategy": "mps"}), "parameters.sharing.strategy: must be one of"),
        (
            parameters(sharing={"strategy": 1}),
            "parameters.sharing.strategy: must be one of TimeSlicing, MPS, is a number",
        ),
        (
            parameters(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}}),
            "parameters.sharing.timeSlicingConfig.interval: must be one of Default, Short, Medium, Long, is 'Forever'",
        ),
        (
            parameters(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
            "parameters.sharing.mpsConfig: only goes with strategy MPS",
        ),
        (
            parameters("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
            "parameters.sharing.timeSlicingConfig: unknown field",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}),
            "parameters.sharing.mpsConfig.defaultActiveThreadPercentage: must be between 0 and 100, is 101",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": True}}),
            "defaultActiveThreadPercentage: must be an integer, is a boolean",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Ki"}}),
            "defaultPinnedDeviceMemoryLimit: must be at least 1Mi, is 1Ki",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "lots"}}),
            "defaultPinnedDeviceMemoryLimit: must be a quantity such as 10Gi, is 'lots'",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": 1.5}}}),
            "defaultPerDevicePinnedMemoryLimit[0]: must be a quantity such as 10Gi, is a number",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"gpu": "1Gi"}}}),
            "defaultPerDevicePinnedMemoryLimit[gpu]: must name a device",
        ),
        (
            parameters(sharing={"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}),
            "parameters.sharing.timeSlicingConfig: only goes with strategy TimeSlicing, strategy is MPS",
        ),
        (
            parameters(sharing={"strategy": "MPS", "mpsConfig": {"multiUser": "yes"}}),
            "mpsConfig.multiUser: must be true or false, is a string",
        ),
    ],
)
def test_a_fault_names_the_field(wire: Any, path: str) -> None:
    code, message = faults(wire)
    assert code == "claim.bad-config"
    assert path in message


def test_all_faults_are_reported_at_once() -> None:
    _, message = faults(parameters(colour="red", sharing={"strategy": "x", "mpsConfig": {"multiUser": 1, "size": 2}}))
    for path in ("parameters.colour", "sharing.strategy", "mpsConfig.multiUser", "mpsConfig.size"):
        assert path in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


TOO_LARGE = ("1e999999999", "1E99", "9" * 4000, "9223372036854775808", 2**63, 10**4000)


@pytest.mark.parametrize("amount", TOO_LARGE, ids=lambda amount: str(amount)[:12])
@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_an_amount_that_no_device_has_is_a_fault_not_an_error(kind: str, amount: Any) -> None:
    limits = {"defaultPinnedDeviceMemoryLimit": amount, "defaultPerDevicePinnedMemoryLimit": {"0": amount}}
    faults = validate({"apiVersion": API_VERSION, "kind": kind, "sharing": {"strategy": "MPS", "mpsConfig": limits}})
    assert len(faults) == 2
    assert all("must be at most" in fault.message for fault in faults)


@pytest.mark.parametrize("amount", ["1e-999999999", "1e99999999999999999999", "-1e999999999", "9" * 5000, ".", "1e"])
def test_an_amount_that_is_malformed_or_out_of_range_is_a_fault(amount: str) -> None:
    mps = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": amount}}
    assert validate({"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": mps})


@given(JSON, JSON)
def test_any_json_is_decoded_or_refused(whole: Any, sharing: Any) -> None:
    for wire in (whole, parameters(sharing=sharing), parameters(sharing={"strategy": "MPS", "mpsConfig": sharing})):
        with suppress(ClaimError):
            decode_config(wire)
