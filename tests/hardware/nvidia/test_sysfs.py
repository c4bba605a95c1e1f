"""sysfs, procfs and /dev under injected roots."""

import os
from pathlib import Path

import pytest

from dra_driver.hardware import pci
from dra_driver.hardware.nvidia import library
from tests.hardware.nvidia.conftest import needs_root
from tests.support.nodes.fake_node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_functions_are_in_address_order_with_their_drivers(node: FakeNode) -> None:
    node.add_gpu("0000:b1:00.0", driver="vfio-pci")
    node.add_gpu("0000:17:00.0")
    node.add_gpu("0000:17:00.4", driver=None, physfn="0000:17:00.0")
    node.add_gpu("0000:18:00.0", pci_class="0x020000")
    assert library.read_pci_functions(node.roots) == (
        library.PciFunction("0000:17:00.0", "nvidia", is_virtual=False),
        library.PciFunction("0000:17:00.4", None, is_virtual=True),
        library.PciFunction("0000:b1:00.0", "vfio-pci", is_virtual=False),
    )


@pytest.mark.parametrize(("written", "read"), [("1", 1), ("0", 0), ("-1", None), ("", None), ("many", None)])
def test_a_numa_node_is_a_number_or_nothing(node: FakeNode, written: str, read: int | None) -> None:
    node.add_gpu("0000:17:00.0")
    (node.folder / "sys/bus/pci/devices/0000:17:00.0/numa_node").write_text(written + "\n")
    assert pci.read_numa_node(node.roots, "0000:17:00.0") == read


def test_the_root_complex_is_the_first_on_the_device_s_path(node: FakeNode) -> None:
    node.add_gpu("0000:19:00.0", root="pci0000:16")
    assert pci.read_pcie_root(node.roots, "0000:19:00.0") == "pci0000:16"
    assert pci.read_pcie_root(node.roots, "0000:20:00.0") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025", "550.163.01"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022", "390.157"),
        ("something else", None),
    ],
)
def test_the_version_is_found_in_the_driver_s_own_line(node: FakeNode, text: str, version: str | None) -> None:
    node.load_driver()
    (node.folder / "sys/module/nvidia/version").unlink()
    (node.folder / "proc/driver/nvidia/version").write_text(text)
    assert library.read_driver_version(node.roots) == version


def test_the_module_s_version_comes_first(node: FakeNode) -> None:
    node.load_driver("1.2.3")
    (node.folder / "proc/driver/nvidia/version").write_text("NVRM version: x  4.5.6  y")
    assert library.read_driver_version(node.roots) == "1.2.3"
    node.unload_driver()
    assert library.read_driver_version(node.roots) is None


@needs_root
def test_nodes_are_listed_with_their_numbers(node: FakeNode) -> None:
    node.add_node("nvidia0", 195, 0)
    node.add_node("nvidia-caps/nvidia-cap3", 237, 3)
    node.add_node("null", 1, 3)
    names = dict(library.read_nodes(node.roots))
    assert set(names) == {"nvidia0", "nvidia-caps/nvidia-cap3", "nvidia-caps"}
    assert names["nvidia0"] == 195 << 8


@needs_root
def test_nodes_of_capabilities_are_looked_at_again_only_if_their_folder_has_changed(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are hundreds, and an agent with nothing to do compares them every two seconds."""
    looked: list[str] = []
    real = os.stat
    monkeypatch.setattr(library.os, "stat", lambda path, **kwargs: (looked.append(str(path)), real(path, **kwargs))[1])

    def seen() -> tuple[dict[str, int], int]:
        looked.clear()
        return dict(library.read_nodes(node.roots)), sum("nvidia-cap3" in path for path in looked)

    folder = node.folder / "dev/nvidia-caps"
    node.add_node("nvidia-caps/nvidia-cap3", 237, 3)
    assert [seen()[1], seen()[1]] == [1, 1], "a change right now could leave the folder's time as it is"
    os.utime(folder, (1e9, 1e9))
    assert [seen()[1], seen()[1]] == [1, 0]
    (folder / "nvidia-cap3").unlink()
    node.add_node("nvidia-caps/nvidia-cap3", 240, 3)
    assert seen() == ({**seen()[0], "nvidia-caps/nvidia-cap3": 240 << 8 | 3}, 1)
    os.utime(folder, (1e9, 1e9))
    seen()
    folder.rename(node.folder / "dev/other")
    assert "nvidia-caps/nvidia-cap3" not in seen()[0]


def test_only_nvidia_s_majors_are_read(node: FakeNode) -> None:
    assert library.read_majors(node.roots) == ()
    node.load_driver()
    assert "195 nvidia" in library.read_majors(node.roots)
    assert not any("mem" in line for line in library.read_majors(node.roots))


def test_a_function_that_can_t_be_read_is_skipped(node: FakeNode) -> None:
    (node.folder / "sys/bus/pci/devices/0000:99:00.0").symlink_to("../../../devices/gone")
    (node.folder / "sys/bus/pci/devices/nonsense").mkdir()
    node.add_gpu("0000:17:00.0")
    assert [f.address for f in library.read_pci_functions(node.roots)] == ["0000:17:00.0"]
