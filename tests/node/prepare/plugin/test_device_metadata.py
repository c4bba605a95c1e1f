"""Files about their devices in containers: found and read as KubeVirt does, rewritten in place, removed by UID."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import PrepareError
from dra_driver.hardware.facts import ChannelFacts
from dra_driver.node.claims.allocated import POD_CLAIM_NAME, AllocatedClaim, AllocatedDevice, ClaimedDevice, ClaimOnNode
from dra_driver.node.claims.metadata import plan_metadata
from dra_driver.node.devices.offering import channel_devices
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, small
from tests.support.plugin.parts import DRIVER, POOL, claim_wire, result

IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
PCI = "resource.kubernetes.io/pciBusID"


@pytest.fixture
def rig(tmp_path):
    MigRig.has_metadata = True
    rig = MigRig(tmp_path)
    yield rig
    MigRig.has_metadata = False
    rig.close()


def mounts(rig, uid, *, request=None) -> dict[str, str]:
    """Return what the runtime mounts where, for a container that has the whole claim or one of its requests."""
    prepared = rig.prepare(uid)
    asked = {i.partition("=")[2] for d in prepared if request in (None, d.request) for i in d.cdi_ids}
    document = json.loads((rig.cdi / rig.file_of(uid)).read_text())
    found = [m for d in document["devices"] if d["name"] in asked for m in d["containerEdits"].get("mounts", ())]
    assert all(m["options"][:2] == ["ro", "bind"] for m in found if IN_CONTAINER in m["containerPath"])
    return {m["containerPath"]: m["hostPath"] for m in found if IN_CONTAINER in m["containerPath"]}


def as_kubevirt(mounted: dict[str, str], kind: str, name: str, request: str) -> dict:
    """Return the device that KubeVirt finds: one file, the first object of v1alpha1, one device of the request."""
    folder = f"{IN_CONTAINER}/{kind}/{name}/{request}/"
    (path,) = [p for p in mounted if p.startswith(folder) and p.endswith("-metadata.json")]
    decoder, text = json.JSONDecoder(), Path(mounted[path]).read_text()
    while text.strip():
        found, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        assert found["kind"] == "DeviceMetadata"
        if found["apiVersion"] == "metadata.resource.k8s.io/v1alpha1":
            (asked,) = [r for r in found["requests"] if r["name"] == request]
            (device,) = asked["devices"]
            return {**device, "of": found}
    raise AssertionError("no version that KubeVirt knows")


def test_kubevirt_finds_the_device_of_a_claim(rig):
    rig.allocate("a", WHOLE)
    device = as_kubevirt(mounts(rig, "a"), "resourceclaims", "claim-a", "gpu")
    published = next(d for d in rig.inventory.devices if d.name == WHOLE)
    assert (device["driver"], device["pool"], device["name"]) == (DRIVER, POOL, WHOLE)
    assert device["attributes"][PCI] == {"string": "0000:01:00.0"}
    assert set(device["attributes"]) == set(published.attributes)
    assert device["attributes"]["driverVersion"] == {"version": published.attributes["driverVersion"][1]}
    assert device["of"]["metadata"] == {"name": "claim-a", "namespace": "ns", "uid": "a", "generation": 1}
    assert "podClaimName" not in device["of"]


def test_kubevirt_finds_the_device_of_a_claim_made_from_a_template_by_the_pods_own_name(rig):
    wire = claim_wire("a", result(WHOLE))
    wire["metadata"]["annotations"] = {POD_CLAIM_NAME: "gpu"}
    rig.api.put(wire)
    device = as_kubevirt(mounts(rig, "a"), "resourceclaimtemplates", "gpu", "gpu")
    assert device["of"]["podClaimName"] == "gpu"


@pytest.mark.parametrize("name", ["../../../etc", "A b", "x" * 64, "", 7, None])
def test_an_annotation_that_is_not_a_valid_name_is_ignored(rig, name):
    wire = claim_wire("a", result(WHOLE))
    wire["metadata"]["annotations"] = {POD_CLAIM_NAME: name}
    rig.api.put(wire)
    assert as_kubevirt(mounts(rig, "a"), "resourceclaims", "claim-a", "gpu")["name"] == WHOLE


def test_the_newest_version_comes_first_and_all_have_the_same_content(rig):
    rig.allocate("a", WHOLE)
    (path,) = mounts(rig, "a").values()
    objects = [json.loads(line) for line in Path(path).read_text().splitlines()]
    versions = [each.pop("apiVersion") for each in objects]
    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    assert objects[0] == objects[1]


def test_a_container_of_one_request_sees_the_file_of_that_request_alone(rig):
    rig.api.put(claim_wire("a", {**result(WHOLE), "request": "one"}, {**result(OTHER), "request": "two"}))
    assert [path.split("/")[-2] for path in mounts(rig, "a", request="one")] == ["one"]
    assert [path.split("/")[-2] for path in mounts(rig, "a")] == ["one", "two"]


def test_two_devices_of_one_request_are_in_one_file_that_is_mounted_once(rig):
    rig.api.put(claim_wire("a", {**result(WHOLE), "request": "one"}, {**result(OTHER), "request": "one"}))
    ((_, path),) = mounts(rig, "a").items()
    (request,) = json.loads(Path(path).read_text().splitlines()[0])["requests"]
    assert [device["name"] for device in request["devices"]] == [WHOLE, OTHER]


def test_a_chosen_alternative_is_named_in_the_file_and_not_in_its_path(rig):
    rig.api.put(claim_wire("a", {**result(WHOLE), "request": "gpu/big"}))
    ((inside, path),) = mounts(rig, "a").items()
    assert inside == f"{IN_CONTAINER}/resourceclaims/claim-a/gpu/{DRIVER}-metadata.json"
    assert json.loads(Path(path).read_text().splitlines()[0])["requests"][0]["name"] == "gpu/big"


def test_the_uuid_of_a_partition_that_prepare_made_is_in_the_file_alone(rig):
    rig.allocate("a", small(0))
    device = as_kubevirt(mounts(rig, "a"), "resourceclaims", "claim-a", "gpu")
    assert "uuid" not in next(d for d in rig.inventory.devices if d.name == small(0)).attributes
    (made,) = rig.partitions()
    assert device["attributes"]["uuid"] == {"string": made.uuid}


def test_a_repeated_call_writes_nothing_and_a_change_is_written_into_the_same_file(rig):
    rig.allocate("a", WHOLE)
    (path,) = mounts(rig, "a").values()
    first, before = Path(path).stat(), Path(path).read_text()
    assert list(mounts(rig, "a").values()) == [path]
    assert (Path(path).stat().st_mtime_ns, Path(path).read_text()) == (first.st_mtime_ns, before)
    change_driver(rig, "999.9.9")
    mounts(rig, "a")
    lines = Path(path).read_text().split("\n")
    assert Path(path).stat().st_ino == first.st_ino, "a running container has the file itself"
    assert json.loads(lines[0])["metadata"]["generation"] == 2
    assert "999.9.9" in lines[0]
    assert len(Path(path).read_bytes()) >= len(before), "a shorter content is filled up, so that no reader sees a part"


def test_a_changed_driver_is_written_without_a_call_of_the_kubelet(rig):
    rig.allocate("a", WHOLE)
    (path,) = mounts(rig, "a").values()
    change_driver(rig, "999.9.9")
    rig.repair.refresh_cdi()
    assert "999.9.9" in Path(path).read_text()


def test_after_a_restart_a_claim_of_a_template_is_still_found_by_the_pods_own_name(rig):
    wire = claim_wire("a", result(WHOLE))
    wire["metadata"]["annotations"] = {POD_CLAIM_NAME: "gpu"}
    rig.api.put(wire)
    before = mounts(rig, "a")
    rig.restart()
    change_driver(rig, "999.9.9")
    rig.repair.refresh_cdi()
    document = json.loads((rig.cdi / rig.file_of("a")).read_text())
    (mount,) = document["devices"][0]["containerEdits"]["mounts"]
    assert {mount["containerPath"]: mount["hostPath"]} == before
    device = as_kubevirt(before, "resourceclaimtemplates", "gpu", "gpu")
    assert device["of"]["podClaimName"] == "gpu"
    assert device["attributes"]["driverVersion"] == {"version": "999.9.9"}


def test_unprepare_removes_the_files_and_the_folder(rig):
    rig.allocate("a", WHOLE)
    mounts(rig, "a")
    rig.unprepare("a")
    assert files(rig) == []
    rig.unprepare("a")


def test_a_claim_made_again_under_its_name_has_a_file_of_its_own(rig):
    rig.allocate("a", WHOLE)
    (old,) = mounts(rig, "a").values()
    wire = claim_wire("b", result(OTHER))
    wire["metadata"]["name"] = "claim-a"
    rig.api.put(wire)
    (new,) = mounts(rig, "b").values()
    change_driver(rig, "999.9.9")
    rig.repair.refresh_cdi()
    found = {Path(path): json.loads(Path(path).read_text().splitlines()[0]) for path in (old, new)}
    assert [one["metadata"]["uid"] for one in found.values()] == ["a", "b"], "each reads about its own devices"
    assert all("999.9.9" in json.dumps(one) for one in found.values())
    rig.unprepare("a")
    assert files(rig) == [Path(new)]
    rig.unprepare("b")
    assert files(rig) == []


def test_the_uuid_of_a_partition_stays_in_the_file_when_another_attribute_changes(rig):
    rig.allocate("a", small(0))
    (path,) = mounts(rig, "a").values()
    change_driver(rig, "999.9.9")
    rig.repair.refresh_cdi()
    text = Path(path).read_text()
    assert "999.9.9" in text
    assert rig.partitions()[0].uuid in text


def test_files_that_the_ledger_does_not_name_are_removed_and_the_others_stay(rig):
    rig.allocate("a", WHOLE)
    (path,) = mounts(rig, "a").values()
    (Path(path).parent / "gone_gpu.json").write_text("{")
    rig.restart()
    rig.repair.run()
    assert files(rig) == [Path(path)]


def test_a_file_that_a_crash_cut_off_is_written_again_as_a_whole(rig):
    rig.allocate("a", WHOLE)
    (path,) = mounts(rig, "a").values()
    before = Path(path).read_text()
    Path(path).write_text(before[: len(before) // 2])
    mounts(rig, "a")
    assert [json.loads(line)["requests"] for line in Path(path).read_text().splitlines()]
    Path(path).write_text("")
    mounts(rig, "a")
    assert Path(path).read_text() == before


def test_the_longest_names_have_a_file(rig):
    wire = claim_wire("a", {**result(WHOLE), "request": "r" * 63})
    wire["metadata"] |= {"name": "c" * 253}
    rig.api.put(wire)
    ((inside, _),) = mounts(rig, "a").items()
    assert "c" * 253 in inside
    rig.unprepare("a")
    assert files(rig) == []


def test_a_device_without_a_pci_address_has_no_such_attribute():
    first, _ = channel_devices(ChannelFacts("3b1c.7", 235))
    held = AllocatedDevice("channel", POOL, first.name)
    claim = AllocatedClaim("u", "ns", "c", (held,))
    (found,) = plan_metadata(ClaimOnNode(claim, (ClaimedDevice(held, first, (), "x"),)), DRIVER)
    assert set(found.devices[0].attributes) == set(first.attributes.items())


def test_a_folder_that_cannot_be_written_fails_the_call_and_nothing_is_left(rig):
    rig.allocate("a", small(0))
    rig.cdi.mkdir(exist_ok=True)
    (rig.cdi / f"{DRIVER}-metadata").write_text("a file")
    with pytest.raises(PrepareError) as caught:
        rig.prepare("a")
    assert caught.value.code == "prepare.metadata-write"
    (rig.cdi / f"{DRIVER}-metadata").unlink()
    rig.assert_empty()
    assert rig.partitions() == []


def test_when_switched_off_nothing_is_written_and_earlier_files_are_removed(rig):
    rig.allocate("a", WHOLE)
    mounts(rig, "a")
    MigRig.has_metadata = False
    rig.restart()
    assert mounts(rig, "a") == {}
    rig.unprepare("a")
    assert files(rig) == []
    rig.allocate("b", WHOLE)
    assert mounts(rig, "b") == {}


def files(rig) -> list[Path]:
    return [path for path in (rig.cdi / f"{DRIVER}-metadata").rglob("*") if path.is_file()]


def change_driver(rig, version: str) -> None:
    changed = tuple(
        replace(d, attributes={**d.attributes, "driverVersion": ("version", version)}) for d in rig.inventory.devices
    )
    rig.inventory = replace(rig.inventory, offering=replace(rig.inventory.offering, devices=changed))
