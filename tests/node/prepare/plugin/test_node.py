"""The identity of a node: its driver, its pool and its boot."""

from pathlib import Path

from dra_driver.node.devices.offering import this_node


def test_the_boot_id_is_read_below_the_given_proc(tmp_path: Path) -> None:
    path = tmp_path / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("5a3c\n")
    node = this_node("n1", "gpu.nvidia.com", tmp_path)
    assert (node.driver, node.pool, node.boot_id) == ("gpu.nvidia.com", "n1/gpu.nvidia.com", "5a3c")


def test_without_a_boot_id_the_identity_has_an_empty_one(tmp_path: Path) -> None:
    assert this_node("n1", "gpu.nvidia.com", tmp_path).boot_id == ""
