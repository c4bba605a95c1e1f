"""Warnings about selectors on a fleet, kept by watches on a real HTTP API. Not covered: the lint rules themselves."""

from __future__ import annotations

import pytest

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLASSES, SLICES
from dra_driver.tools.webhook.fleet import FleetWatch, PublishedFleet
from dra_driver.tools.webhook.linting import FleetLinter
from dra_driver.tools.webhook.review import CallerGoneError, ReviewDeadline, selectors
from tests.support.api.embedded_client import slice_wire
from tests.support.waiting import until
from tests.tools.webhook.support.reviews import DRIVER, claim, device_class, request

CLASS = f'device.driver == "{DRIVER}"'
AT = "spec.devices.requests[0].exactly.selectors[0]"


def device(index, **attributes):
    standard = {"uuid": {"string": f"GPU-{index}"}, "productName": {"string": "H100"}}
    return {"name": f"gpu-{index}", "attributes": {**standard, **attributes}, "capacity": {"memory": {"value": "80Gi"}}}


def wire(name, *devices):
    made = slice_wire(name, driver=DRIVER, devices=list(devices))
    made["metadata"]["uid"] = name
    return made


@pytest.fixture
def fleet():
    made = PublishedFleet()
    made.replace_slices((wire("s1", device(1), device(2), device(3, model={"string": "x"})),))
    made.replace_classes((device_class(expressions=[CLASS], name=DRIVER), device_class(name="other")))
    return made


@pytest.fixture
def linter(fleet):
    return FleetLinter(fleet, (DRIVER,), kubernetes="1.35")


def said(linter, *expressions, class_name=DRIVER):
    return linter.warnings(
        "ResourceClaim", selectors("ResourceClaim", claim(requests=[request(*expressions, class_name=class_name)]))
    )


def test_devices_that_differ_only_in_identity_are_one_shape(fleet):
    assert sorted(shape.count for shape in fleet.shapes()) == [1, 2]


def test_a_fleet_that_is_listed_again_is_complete_at_every_moment(fleet):
    def listed():
        for made in (wire("s2", device(4, model={"string": "y"})), wire("s1", device(1), device(2))):
            yield made
            seen.append(sorted(shape.count for shape in fleet.shapes()))

    seen = []
    fleet.replace_slices(listed())
    assert seen == [[1, 2], [1, 2]]
    assert sorted(shape.count for shape in fleet.shapes()) == [1, 2]
    assert {name for shape in fleet.shapes() for name in shape.view.attributes[DRIVER]} >= {"model"}


def test_an_unguarded_attribute_gets_a_warning_with_its_field_and_a_better_text(linter):
    warning, better = said(linter, f'device.attributes["{DRIVER}"].model == "x"')
    assert warning.startswith(f"{AT}: 2 of 3 devices lack")
    assert better.startswith(f"{AT}: better: ")
    assert max(map(len, (warning, better))) <= 256
    assert warning.endswith("[unguarded-attribute]")


def test_a_misspelt_name_is_compared_with_those_of_the_cluster(linter):
    warnings = said(linter, f'device.attributes["{DRIVER}"].?produktName.orValue("") == "H100"')
    assert any(f"did you mean {DRIVER}/productName?" in one for one in warnings)


def test_there_is_no_advice_to_guard_a_name_that_does_not_exist(linter):
    [warning] = said(linter, f'device.attributes["{DRIVER}"].productname == "H100"')
    assert f"did you mean {DRIVER}/productName?" in warning


def test_the_same_devices_in_a_new_generation_change_nothing(fleet):
    before = fleet.version
    again = wire("s1", device(1), device(2), device(3, model={"string": "x"}))
    again["spec"]["pool"]["generation"] += 1
    fleet.put_slice(again)
    assert fleet.version == before
    fleet.put_slice(wire("s1", device(1)))
    assert fleet.version > before


def test_a_selector_that_matches_no_device_of_the_fleet_gets_a_warning(linter):
    [warning] = said(linter, f'device.attributes["{DRIVER}"].productName == "H300"')
    assert "none of the 3 devices that reach it matches" in warning


def test_a_uuid_that_no_device_has_gets_no_warning(linter):
    assert said(linter, f'device.attributes["{DRIVER}"].uuid == "GPU-9"') == []


def test_a_good_selector_and_one_of_other_classes_get_no_warning(linter):
    assert said(linter, f'device.attributes["{DRIVER}"].productName == "H100"') == []
    assert said(linter, "false", class_name="other") == []
    assert said(linter, "false", class_name="unknown") == []


def test_an_expression_that_names_the_driver_is_judged_whatever_its_class(linter):
    assert said(linter, f'device.driver == "{DRIVER}" && false', class_name="other")


def test_an_expression_that_does_not_compile_is_left_to_the_api_server(linter):
    assert said(linter, "device.nope(") == []


TEN = "[1,2,3,4,5,6,7,8,9,10]"
ENDLESS = f'device.driver == "{DRIVER}" && {TEN}.all(a,{TEN}.all(b,{TEN}.all(c,{TEN}.all(d,{TEN}.all(e,a+b+c+d+e>0)))))'
GOOD = f'device.attributes["{DRIVER}"].productName == "H300"'


def found(*expressions):
    return selectors("ResourceClaim", claim(requests=[request(*expressions)]))


def ends_after(times: int) -> ReviewDeadline:
    """Return a deadline that has passed once the clock was read that many times."""
    clock = iter(range(10**9))
    return ReviewDeadline(times, clock=lambda: next(clock))


def test_a_selector_that_takes_too_long_is_reported_as_not_judged_and_not_tried_again(linter):
    [first] = linter.warnings("ResourceClaim", found(ENDLESS), ends_after(200))
    assert "not judged" in first
    assert "[not-judged]" in first
    assert linter.warnings("ResourceClaim", found(ENDLESS), ends_after(200)) == [first]
    assert linter.warnings("ResourceClaim", found(ENDLESS), ends_after(10**8)) == [first]


def test_a_selector_after_one_that_took_too_long_is_tried_again(linter):
    assert any("not judged" in one for one in linter.warnings("ResourceClaim", found(ENDLESS, GOOD), ends_after(200)))
    assert "always-false" in str(linter.warnings("ResourceClaim", found(GOOD), ReviewDeadline(60)))


def test_a_running_review_delays_others_only_for_a_moment(linter):
    known = linter.warnings("ResourceClaim", found(GOOD), ReviewDeadline(60))
    with linter._turn:
        assert "not judged" in str(
            linter.warnings("ResourceClaim", found(GOOD.replace("H300", "H301")), ReviewDeadline(0.1))
        )
        assert linter.warnings("ResourceClaim", found(GOOD), ReviewDeadline(60)) == known
    assert "always-false" in str(
        linter.warnings("ResourceClaim", found(GOOD.replace("H300", "H301")), ReviewDeadline(60))
    )


def test_a_review_ends_when_its_caller_is_gone(linter):
    deadline = ReviewDeadline(600, is_gone=lambda: True)
    with pytest.raises(CallerGoneError):
        linter.warnings("ResourceClaim", found(*[ENDLESS.replace("> 0", f"> -{n}") for n in range(32)]), deadline)
    assert not linter._turn.locked()


def test_a_class_whose_selectors_take_too_long_is_not_judged(fleet, linter):
    fleet.put_class(device_class(expressions=[ENDLESS], name="slow"))
    assert "not judged" in str(
        linter.warnings(
            "ResourceClaim",
            selectors("ResourceClaim", claim(requests=[request(GOOD, class_name="slow")])),
            ReviewDeadline(0.3),
        )
    )


def test_the_selectors_of_a_class_are_linted(linter):
    obj = device_class(expressions=[f'device.attributes["{DRIVER}"].model == "x"'])
    assert linter.warnings("DeviceClass", selectors("DeviceClass", obj))


def test_no_warning_is_given_before_the_fleet_is_known():
    assert (
        said(FleetLinter(PublishedFleet(), (DRIVER,), kubernetes="1.35"), f'device.driver == "{DRIVER}" && false') == []
    )


def test_warnings_follow_changes_of_the_fleet(fleet, linter):
    expression = f'device.attributes["{DRIVER}"].productName == "H300"'
    assert said(linter, expression)
    fleet.put_slice(wire("s2", device(4, productName={"string": "H300"})))
    assert said(linter, expression) == []
    fleet.drop_slice("s2")
    assert said(linter, expression)


def test_watches_keep_the_fleet_up_to_date(tmp_path):
    server = EmbeddedApi()
    server.start()
    server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api = KubeApi(load_credentials(str(server.write_kubeconfig(tmp_path / "kubeconfig"))))
    fleet = PublishedFleet()
    watch = FleetWatch(api, fleet)
    watch.start()
    try:
        until(lambda: fleet.is_known)
        server.request("POST", CLASSES.path(), body={"metadata": {"name": "a"}, "spec": {}})
        server.request("POST", SLICES.path(), body=slice_wire(driver=DRIVER, devices=[device(1)]))
        until(lambda: fleet.shapes() and fleet.selectors_of("a") == ())
        server.request("DELETE", SLICES.path(name="s"))
        server.request("DELETE", CLASSES.path(name="a"))
        until(lambda: not fleet.shapes() and fleet.selectors_of("a") is None)
    finally:
        watch.stop()
        api.close()
        server.stop()
