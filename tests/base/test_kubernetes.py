"""Feature gates and versions, against Kubernetes' table of gates."""

import pytest

from dra_driver.base.versions import VERSIONS, gate_defaults, minor_of, nearest_version
from dra_driver.selectors.check.declarations import declare
from dra_driver.simulator.api_server import gates_on

ALWAYS = {"DRAAdminAccess", "DRAPrioritizedList", "DRAResourceClaimDeviceStatus"}
BETA_OF_136 = {
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
}


@pytest.mark.parametrize(
    ("minor", "on", "off"),
    [
        (34, ALWAYS, BETA_OF_136),
        (35, ALWAYS, BETA_OF_136),
        (36, ALWAYS | BETA_OF_136, {"DRAListTypeAttributes"}),
        (
            37,
            ALWAYS | BETA_OF_136 | {"DRAFractionalCapacityRange"},
            {
                "DRADerivedAttributes",
                "DRADeviceCompatibilityGroups",
                "DRAListTypeAttributes",
                "DRAOptionalNodeOperations",
            },
        ),
    ],
)
def test_each_minor_has_the_gates_of_its_release_notes(minor, on, off):
    found = gate_defaults(minor)
    assert {name for name, is_on in found.items() if is_on} == on
    assert {name for name, is_on in found.items() if not is_on} == off
    assert gates_on(minor, {}) == on - {"DRAFractionalCapacityRange"}  # a gate that the embedded API has no rule for


def test_selectors_depend_on_two_gates_of_which_the_second_came_with_1_36():
    assert [dict(declare(version, None, "stored").gates) for version in VERSIONS] == [
        {"DRAConsumableCapacity": False},
        {"DRAConsumableCapacity": False},
        {"DRAConsumableCapacity": True, "DRAListTypeAttributes": False},
        {"DRAConsumableCapacity": True, "DRAListTypeAttributes": False},
    ]


@pytest.mark.parametrize(
    ("text", "minor"),
    [("1.36", 36), ("v1.36.4", 36), ("1.35+", 35), ("v1.37.0-rc.1", 37), ("1.36-alpha", 36), ("2.1", 0), ("", 0)],
)
def test_the_minor_is_read_from_every_way_to_write_a_version(text, minor):
    assert minor_of(text) == minor


def test_a_minor_that_is_not_known_is_judged_by_the_nearest():
    assert [nearest_version(minor) for minor in (0, 34, 36, 40)] == ["1.34", "1.34", "1.36", "1.37"]
