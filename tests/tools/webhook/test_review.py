"""Which configs are refused and which selectors get warnings, in every kind and version of the API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.node.claims.config import validate
from dra_driver.tools.webhook.review import WARNING_CHARACTERS, review_configs, review_selectors
from tests.tools.webhook.support.reviews import DRIVER, claim, config, device_class, request, review, template

WRONG = config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Forever"}, extra=1)
RIGHT = config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
MAKERS = {
    "spec.devices.config[1].opaque.parameters": claim,
    "spec.spec.devices.config[1].opaque.parameters": template,
    "spec.config[1].opaque.parameters": device_class,
}


class Repeater:
    """Warns of every selector."""

    def warnings(self, kind, found, _waiting=None):
        return [f"{kind} {one.path}: {one.expression}" for one in found]


def refused(obj, **more):
    response = review_configs(review(obj, **more), (DRIVER,))["response"]
    return None if response["allowed"] else response["status"]["message"]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("path", MAKERS)
def test_a_wrong_config_is_refused_with_every_fault_and_its_field(path, version):
    message = refused(MAKERS[path](RIGHT, WRONG, version=version))
    assert f"{path}.sharing.timeSlicingConfig.interval" in message
    assert f"{path}.sharing.extra" in message
    assert refused(MAKERS[path](RIGHT, version=version)) is None


def test_the_faults_are_those_that_the_node_finds():
    parameters = WRONG["opaque"]["parameters"]
    wanted = [str(fault) for fault in validate(parameters, "spec.devices.config[0].opaque.parameters")]
    assert refused(claim(WRONG)).split(": ", 1)[1] == "; ".join(wanted)


def test_configs_of_other_drivers_are_not_judged():
    assert refused(claim(config("nic.example.com", strategy="nonsense"))) is None


def test_one_webhook_judges_the_configs_of_several_drivers_each_by_its_own_rules():
    units = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig", "computeUnits": {"count": 4}}

    def allowed(driver, parameters):
        asked = review(claim(RIGHT, {"opaque": {"driver": driver, "parameters": parameters}}))
        return review_configs(asked, ("gpu.nvidia.com", "gpu.amd.com"))["response"]["allowed"]

    assert allowed("gpu.amd.com", units)
    assert not allowed("gpu.nvidia.com", units)
    assert not allowed("gpu.amd.com", {**units, "computeUnits": {"count": 0}})
    assert allowed("gpu.intel.com", {"kind": "not for these drivers"})


@pytest.mark.parametrize("make", [claim, template, device_class])
def test_mps_for_the_gpus_of_another_vendor_is_refused_at_admission(make):
    drivers = ("gpu.nvidia.com", "gpu.amd.com")
    for driver in drivers:
        answer = review_configs(review(make(config(driver, strategy="MPS"))), drivers)["response"]
        assert answer["allowed"] is (driver == "gpu.nvidia.com")
        if not answer["allowed"]:
            assert "sharing.strategy: MPS is for NVIDIA's GPUs" in answer["status"]["message"]


def test_a_config_that_is_stored_for_one_driver_counts_as_new_for_another():
    units = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig", "computeUnits": {"count": 4}}
    before, after = ({"opaque": {"driver": driver, "parameters": units}} for driver in ("gpu.amd.com", DRIVER))
    asked = review(claim(after), claim(before), "UPDATE")
    assert not review_configs(asked, (DRIVER, "gpu.amd.com"))["response"]["allowed"]


def test_the_answer_has_the_uid_and_a_status_that_kubectl_shows():
    answer = review_configs(review(claim(WRONG)), (DRIVER,))
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == "u-1"
    status = answer["response"]["status"]
    assert status["code"] == 422
    assert (status["details"]["kind"], status["details"]["name"]) == ("ResourceClaim", "c")
    assert [f"{one['field']}: {one['message']}" for one in status["details"]["causes"]] == [
        str(fault) for fault in validate(WRONG["opaque"]["parameters"], "spec.devices.config[0].opaque.parameters")
    ]


def test_an_object_that_is_being_deleted_or_whose_spec_is_unchanged_is_allowed():
    wrong = claim(WRONG)
    going = {**wrong, "metadata": {**wrong["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert refused(going, old=wrong, operation="UPDATE") is None
    assert refused(wrong, old=wrong, operation="UPDATE") is None
    assert refused(None, old=wrong, operation="DELETE") is None
    assert refused(wrong, old=claim(RIGHT), operation="UPDATE") is not None


def test_a_wrong_config_that_is_stored_does_not_prevent_another_change():
    old = device_class(RIGHT, WRONG, expressions=["true"])
    assert refused(device_class(RIGHT, WRONG, expressions=["false"]), old=old, operation="UPDATE") is None
    assert refused(device_class(WRONG), old=old, operation="UPDATE") is None
    worse = config(strategy="nonsense")
    assert "config[2]" in refused(device_class(RIGHT, WRONG, worse), old=old, operation="UPDATE")
    assert refused(device_class(RIGHT, WRONG)) is not None


def test_an_object_with_a_generated_name_is_judged():
    wrong = claim(WRONG)
    wrong["metadata"] = {"generateName": "c-", "namespace": "team"}
    response = review_configs(review(wrong), (DRIVER,))["response"]
    assert (response["allowed"], response["status"]["details"]["name"]) == (False, "c-")


def test_selectors_are_found_wherever_an_api_version_has_them():
    sub = {"name": "a", "deviceClassName": "x", "selectors": [{"cel": {"expression": "three"}}]}
    requests = [request("one"), request("two", version="v1beta1"), {"name": "r", "firstAvailable": [sub]}]
    warnings = review_selectors(review(claim(requests=requests)), Repeater())["response"]["warnings"]
    assert warnings == [
        "ResourceClaim spec.devices.requests[0].exactly.selectors[0]: one",
        "ResourceClaim spec.devices.requests[1].selectors[0]: two",
        "ResourceClaim spec.devices.requests[2].firstAvailable[0].selectors[0]: three",
    ]
    found = review_selectors(review(device_class(expressions=["four"])), Repeater())["response"]
    assert found["warnings"] == ["DeviceClass spec.selectors[0]: four"]
    assert found["allowed"]


def test_warnings_stay_within_the_limits_of_the_api_server():
    for number in (1, 30):
        long = [request("x" * 1000, name=f"r{i}") for i in range(number)]
        warnings = review_selectors(review(claim(requests=long)), Repeater())["response"]["warnings"]
        assert len(warnings) == min(number, 10)
        assert max(map(len, warnings)) <= WARNING_CHARACTERS == 256


@pytest.mark.parametrize(
    "garbage", [None, 3, [], {}, {"request": 3}, {"request": {"uid": 5}}, {"request": {"uid": "u"}}]
)
def test_a_body_that_is_not_a_review_is_bad_input(garbage):
    for judge in (lambda it: review_configs(it, (DRIVER,)), lambda it: review_selectors(it, Repeater())):
        with pytest.raises(InputError, match="AdmissionReview"):
            judge(garbage)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["spec", "devices", "config", "opaque", "driver", "parameters", "requests", "exactly", "firstAvailable",
             "selectors", "cel", "expression", "metadata", "kind", "sharing", "strategy"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON, st.sampled_from(["ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod"]))
def test_every_object_gets_a_verdict(obj, kind):
    asked = review(obj)
    asked["request"]["kind"]["kind"] = kind
    assert review_selectors(asked, Repeater())["response"]["allowed"]
    assert "allowed" in review_configs(asked, (DRIVER,))["response"]
