"""Gaudi accelerators: what is read of them, and what containers get."""

from pathlib import Path

import pytest

from dra_driver.hardware.gaudi.vendor import GaudiCard, GaudiHardware
from dra_driver.hardware.port import ClaimWide
from dra_driver.node.devices.build import build_inventory
from tests.support.nodes.fake_node import can_make_nodes
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree

CARD = GaudiModule("0000:a0:00.0", 3, "5")


@pytest.fixture
def tree(tmp_path: Path) -> GaudiTree:
    return GaudiTree(tmp_path)


def cards(tree: GaudiTree) -> list[GaudiCard]:
    return [gpu for gpu in GaudiHardware(tree.roots).discover().gpus if isinstance(gpu, GaudiCard)]


def codes(tree: GaudiTree) -> list[str]:
    return [problem.code for problem in GaudiHardware(tree.roots).discover().problems]


def test_a_card_is_published_with_its_model_slot_and_nominal_memory(tree: GaudiTree) -> None:
    (device,) = build_inventory(GaudiHardware(tree.write(CARD).roots).discover()).devices
    shown = {name: device.attributes[name] for name in ("model", "healthy", "moduleID", "hasVerbs", "memoryIsNominal")}
    assert device.name == "gpu-0000-a0-00-0"
    assert shown == {"model": "Gaudi2", "healthy": True, "moduleID": 5, "hasVerbs": True, "memoryIsNominal": True}
    assert device.capacity == {"memory": 96 << 30}
    assert GaudiHardware(tree.roots).discover().driver_version == "1.22.1"


def test_a_card_has_the_further_attributes_of_intels_driver(tree: GaudiTree) -> None:
    (device,) = build_inventory(GaudiHardware(tree.write(CARD).roots).discover()).devices
    root = str(device.attributes["resource.kubernetes.io/pcieRoot"])
    assert device.attributes["pciRoot"] == root.partition(":")[2]
    assert device.attributes["serial"] == "Unknown"


@pytest.mark.parametrize(
    ("device_id", "model", "memory"),
    [(0x1000, "Gaudi", 32 << 30), (0x1063, "Gaudi3", 128 << 30), (0x4711, None, None)],
)
def test_models_have_their_memory_and_an_unknown_one_has_none(
    tree: GaudiTree, device_id: int, model: str | None, memory: int | None
) -> None:
    (card,) = cards(tree.write(GaudiModule("0000:a0:00.0", device_id=device_id)))
    assert (card.model, card.memory_bytes) == (model, memory)


def test_older_drivers_have_their_folders_among_virtual_devices(tree: GaudiTree) -> None:
    tree.write(GaudiModule("0000:a0:00.0", 7, "2", is_virtual=True))
    (card,) = cards(tree)
    assert (card.minor, card.module_id, card.status) == (7, 2, "operational")


@pytest.mark.parametrize(
    ("status", "is_healthy"),
    [("Operational", True), ("OPERATIONAL", True), ("Malfunction", False), ("in reset", False), ("\1x", False)],
)
def test_the_status_is_read_in_any_case_and_only_operational_is_healthy(
    tree: GaudiTree, status: str, is_healthy: bool
) -> None:
    (card,) = cards(tree.write(GaudiModule("0000:a0:00.0", status=status)))
    assert card.is_healthy is is_healthy
    assert codes(tree) == ([] if is_healthy else ["hardware.not-operational"])


def test_a_card_without_a_status_is_neither_healthy_nor_not(tree: GaudiTree) -> None:
    (card,) = cards(tree.write(GaudiModule("0000:a0:00.0", status=None)))
    assert card.is_healthy is None
    assert codes(tree) == []


@pytest.mark.parametrize("module_id", [None, "", "x", "-1", "99999"])
def test_a_card_without_its_slot_is_left_out_and_named(tree: GaudiTree, module_id: str | None) -> None:
    assert cards(tree.write(GaudiModule("0000:a0:00.0", module_id=module_id), GaudiModule("0000:a1:00.0", 1)))[0].minor
    assert codes(tree) == ["hardware.fact-unreadable"]


def test_a_card_that_its_driver_does_not_drive_is_a_problem_and_not_offered(tree: GaudiTree) -> None:
    tree.write(CARD)
    (tree.folder / "sys/bus/pci/drivers/habanalabs/0000:a0:00.0").unlink()
    (tree.function("0000:a0:00.0") / "driver").unlink()
    assert cards(tree) == []
    assert codes(tree) == ["hardware.gpu-not-driven"]


def test_a_container_gets_the_nodes_of_its_card_and_verbs_where_there_are_any(tree: GaudiTree, tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    tree.write(CARD, GaudiModule("0000:a1:00.0", 4, "6", verbs=None))
    hardware = GaudiHardware(tree.roots)
    paths = [[node.path for node in hardware.device_edits(card, None).device_nodes] for card in cards(tree)]
    assert paths == [
        ["/dev/accel/accel3", "/dev/accel/accel_controlD3", "/dev/infiniband/uverbs0"],
        ["/dev/accel/accel4", "/dev/accel/accel_controlD4"],
    ]


def test_the_variables_of_a_claim_list_all_its_cards_once(tree: GaudiTree) -> None:
    tree.write(GaudiModule("0000:a0:00.0", 10, "5"), GaudiModule("0000:a1:00.0", 2, "6", verbs=1))
    hardware = GaudiHardware(tree.roots)
    assert isinstance(hardware, ClaimWide)
    assert hardware.claim_edits(hardware.discover().gpus).env == (
        "HABANA_VISIBLE_DEVICES=2,10",
        "HABANA_VISIBLE_MODULES=6,5",
        "HL_VISIBLE_DEVICES=/dev/accel/accel2,/dev/accel/accel10",
    )


def test_the_hook_is_used_only_where_its_program_exists(tree: GaudiTree) -> None:
    hardware = GaudiHardware(tree.write(CARD).roots)
    before = hardware.fingerprint()
    assert hardware.claim_edits(cards(tree)).hooks == ()
    assert "habana-container-hook" in hardware.edit_problems()[0]
    tree.add_hook()
    assert hardware.fingerprint() != before
    edits = hardware.claim_edits(cards(tree))
    assert [(hook.name, hook.path) for hook in edits.hooks] == [("createRuntime", "/usr/bin/habana-container-hook")]
    assert [mount.container_path for mount in edits.mounts] == ["/etc/habanalabs/gaudinet.json"]
    assert hardware.edit_problems() == ()
