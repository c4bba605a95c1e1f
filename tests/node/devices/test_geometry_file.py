"""The MIG manager's file and the rules of --mig-geometry: valid ones are read, and all faults are reported at once."""

import json

import pytest

from dra_driver.base.errors import InputError, UsageError
from dra_driver.node.devices.geometry import geometry_of, read_rules
from dra_driver.node.devices.geometry_file import read_configurations


@pytest.fixture
def read(tmp_path):
    def read_document(document):
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(document, indent=1))
        return read_configurations(path)

    return read_document


def document(*entries, **more):
    return {"version": "v1", "mig-configs": {"c": list(entries)}, **more}


def entry(**changes):
    made = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    made.update({key.replace("_", "-"): value for key, value in changes.items()})
    return {key: value for key, value in made.items() if value != "absent"}


def test_a_file_that_the_mig_manager_accepts_is_read(read):
    found = read(
        document(
            entry(device_filter=["0x233010DE", "0x20b010de"], devices=[0, 3]),
            entry(mig_enabled=False, mig_devices="absent"),
            entry(mig_devices={}),
            entry(mig_devices={"1g.10gb+me": 1, "1g.24gb+me.all": 1, "2g.48gb-me": 1, "1c.3g.40gb": 2, "2g.20gb": 0}),
        )
    )["c"]
    assert found[0].filters == {0x233010DE, 0x20B010DE}
    assert found[0].indices == {0, 3}
    assert [e.is_enabled for e in found] == [True, False, True, True]
    assert [len(e.counts) for e in found] == [1, 0, 0, 5]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("text", "document: expected named fields, got 'text'"),
        (None, "got nothing"),
        ({}, "version: missing, expected 'v1'"),
        (document(entry(), extra=1), "extra: unknown field"),
        ({"version": "v1", "mig-configs": {}}, "at least one configuration"),
        ({"version": "v1", "mig-configs": {"c": []}}, "mig-configs.c: expected at least one entry, got none"),
        ({"version": "v1", "mig-configs": {"c": [3]}}, "mig-configs.c[0]: expected named fields, got 3"),
        (document(entry(), entry(devices="some")), "mig-configs.c[1].devices: expected all or a list of indices"),
        (document(entry(devices="absent")), "c[0].devices: missing, expected all or a list of indices"),
        (document(entry(devices=[-1])), "c[0].devices"),
        (document(entry(mig_enabled="yes")), "c[0].mig-enabled: expected true or false, got 'yes'"),
        (document(entry(mig_devices="absent")), "c[0].mig-devices: missing, although mig-enabled is true"),
        (document(entry(mig_enabled=False)), "c[0].mig-devices: given, although mig-enabled is false"),
        (document(entry(mig_devices={"1g10gb": 1})), "'1g10gb' is not a profile"),
        (document(entry(mig_devices={"1g.10gb": -1})), "c[0].mig-devices.1g.10gb: expected a whole number"),
        (document(entry(mig_devices={"1g.10gb": True})), "expected a whole number"),
        (document(entry(device_filter="0x2330")), "c[0].device-filter[0]: expected a PCI device and vendor id"),
        (document(entry(mig_device={})), "c[0].mig-device: unknown field (known here: device-filter, devices"),
    ],
)
def test_each_fault_is_reported_with_its_place(read, wrong, fault):
    with pytest.raises(InputError) as caught:
        read(wrong)
    assert caught.value.code == "input.mig-config"
    assert "config.yaml has" in str(caught.value)
    assert "\n  line " in str(caught.value)
    assert fault in str(caught.value)


def test_all_faults_are_reported_at_once(read):
    with pytest.raises(InputError) as caught:
        read(document(entry(devices=7), entry(mig_enabled=1)))
    assert "line 6: mig-configs.c[0].devices" in str(caught.value)
    assert "line 14: mig-configs.c[1].mig-enabled" in str(caught.value)


def test_the_first_rule_that_matches_the_node_applies():
    rules = read_rules("gpu-a-*: all-1g.10gb; example.com/pool=big:1g.10gb=4,3g.40gb=1 ;label", has_file=False)
    assert geometry_of(rules, "gpu-a-7", {}) == "all-1g.10gb"
    assert geometry_of(rules, "b", {"example.com/pool": "big"}) == "1g.10gb=4,3g.40gb=1"
    assert geometry_of(rules, "b", {}) == "label"
    assert geometry_of(read_rules("a:all-disabled", has_file=False), "b", {}) == ""
    assert geometry_of(read_rules("", has_file=False), "b", {}) == ""


@pytest.mark.parametrize("text", ["gpu", "1g.10gb", "A B:all-balanced", "x:", "all-balanced;nonsense"])
def test_a_wrong_value_of_the_flag_is_refused(text):
    with pytest.raises(UsageError, match="--mig-geometry") as caught:
        read_rules(text, has_file=False)
    assert caught.value.code == "usage.mig-geometry"


def test_the_name_of_a_configuration_needs_a_file_and_is_one_word():
    assert read_rules("my-config", has_file=True)[0].geometry == "my-config"
    for name, has_file in (("my-config", False), ("my config", True)):
        with pytest.raises(UsageError):
            read_rules(name, has_file=has_file)
