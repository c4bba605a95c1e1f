"""ResourceClaims as the API server sends them, read for one driver."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry, decode_claim
from dra_driver.node.claims.device_config import API_VERSION, DeviceConfig
from dra_driver.node.ledger.record import claim_of_record, record_of_claim

DRIVER = "gpu.nvidia.com"


def result(device: str, request: str = "r", driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "n1/p", "device": device, **more}


def config(kind: str, source: str, *requests: str, driver: str = DRIVER, **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": API_VERSION, "kind": kind, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def wire(*results: dict[str, Any], configs: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": "c", "uid": "u"},
        "status": {"allocation": {"devices": {"results": list(results), "config": list(configs)}}},
    }


def decode(claim: dict[str, Any]) -> AllocatedClaim:
    return decode_claim(claim, driver=DRIVER, uid="u")


def test_results_of_other_drivers_are_ignored() -> None:
    claim = decode(wire(result("gpu-0"), result("nic-0", driver="nic.example.com")))
    assert [d.device for d in claim.devices] == ["gpu-0"]
    assert (claim.namespace, claim.name, claim.uid) == ("ns", "c", "u")


def test_the_base_request_is_the_name_before_the_subrequest() -> None:
    (device,) = decode(wire(result("gpu-0", "small/first-choice"))).devices
    assert (device.request, device.base_request) == ("small/first-choice", "small")


def test_admin_access_and_share_ids_are_kept() -> None:
    admin, shared = decode(wire(result("gpu-0", adminAccess=True), result("gpu-1", shareID="s"))).devices
    assert (admin.is_admin, admin.share_id) == (True, None)
    assert (shared.is_admin, shared.share_id) == (False, "s")


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ({"metadata": {"uid": "other"}}, "claim.uid-mismatch"),
        ({}, "claim.uid-mismatch"),
        ({"metadata": {"uid": "u"}}, "claim.not-allocated"),
        ({"metadata": {"uid": "u"}, "status": {"allocation": None}}, "claim.not-allocated"),
        ({"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {}}}}, "claim.not-ours"),
        (wire(result("nic-0", driver="x")), "claim.not-ours"),
    ],
)
def test_a_claim_that_cannot_be_prepared_is_refused_with_a_code(claim: dict[str, Any], code: str) -> None:
    with pytest.raises(ClaimError) as caught:
        decode(claim)
    assert caught.value.code == code


def test_class_configs_come_before_claim_configs_and_others_are_ignored() -> None:
    claim = decode(
        wire(
            result("gpu-0"),
            configs=(
                config("GpuConfig", "FromClaim", "r"),
                config("MigDeviceConfig", "FromClass"),
                config("Anything", "FromClaim", driver="nic.example.com", speed=1),
                {"source": "FromClaim"},
            ),
        )
    )
    assert claim.configs == (
        ConfigEntry(DeviceConfig("MigDeviceConfig")),
        ConfigEntry(DeviceConfig("GpuConfig"), ("r",)),
    )


def test_faults_of_all_configs_are_reported_at_once_with_their_paths() -> None:
    bad = (config("GpuConfig", "FromClass", nonsense=1), config("Wrong", "FromClaim"), {"opaque": {"driver": DRIVER}})
    with pytest.raises(ClaimError) as caught:
        decode(wire(result("gpu-0"), configs=bad))
    for path in (
        "claim ns/c",
        "config[0].opaque.parameters.nonsense",
        "config[1].opaque.parameters.kind",
        "config[2].opaque.parameters: must be an object",
    ):
        assert path in caught.value.message


def test_an_entry_names_a_request_in_full_or_by_its_base_name() -> None:
    device = AllocatedDevice("a/b", "p", "gpu-0")
    assert ConfigEntry(DeviceConfig("GpuConfig"), ("a/b",)).names(device)
    assert ConfigEntry(DeviceConfig("GpuConfig"), ("a",)).names(device)
    assert not ConfigEntry(DeviceConfig("GpuConfig"), ("a/c", "b")).names(device)


NAMES = st.text("abc-/", min_size=1, max_size=6)
DEVICES = st.builds(AllocatedDevice, NAMES, NAMES, NAMES, st.none() | NAMES, st.booleans())
CONFIGS = st.builds(
    ConfigEntry,
    st.sampled_from([DeviceConfig("GpuConfig"), DeviceConfig("MigDeviceConfig")]),
    st.lists(NAMES, max_size=2).map(tuple),
)
CLAIMS = st.builds(
    AllocatedClaim,
    NAMES,
    NAMES,
    NAMES,
    st.lists(DEVICES, min_size=1, max_size=4).map(tuple),
    st.lists(CONFIGS, max_size=3).map(tuple),
)


@given(CLAIMS)
def test_a_claim_is_read_back_from_its_record_despite_keys_of_a_newer_agent(claim: AllocatedClaim) -> None:
    record = record_of_claim(claim)
    record["later"] = {"x": 1}
    for device in record["devices"]:
        device["later"] = 1
    assert claim_of_record(claim.uid, claim.namespace, claim.name, record) == claim
