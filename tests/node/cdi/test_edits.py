"""Edits of devices and of the other files of a driver root: nodes, sockets, firmware, and roots that are remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.nvidia.edits import edits
from dra_driver.hardware.nvidia.edits.edits import common_edits, device_edits
from tests.node.cdi.support.edits_read import checked, commands, places, settled_edits
from tests.support.nodes.driver_root import (
    FOLDERS,
    VERSION,
    FakeDriverRoot,
    add_capability,
    make_node,
)


def test_sockets_are_mounted_only_while_they_exist_and_never_those_of_the_hosts_mps_daemon(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    assert not [p for p in places(common_edits(root.roots(proc=no_proc), VERSION)[0]) if p.startswith(("/run", "/tmp"))]
    root.add("/run/nvidia-persistenced/socket")
    (root.mount / "tmp/nvidia-mps").mkdir(parents=True)
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    sockets = {m.container_path: m for m in found.mounts if m.container_path.startswith(("/run", "/tmp"))}
    assert set(sockets) == {"/run/nvidia-persistenced/socket"}
    socket = sockets["/run/nvidia-persistenced/socket"]
    assert socket.options == ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    assert socket.host_path == "/run/nvidia/driver/run/nvidia-persistenced/socket"
    (root.mount / "run/nvidia-persistenced/socket").unlink()
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert "/run/nvidia-persistenced/socket" not in places(found)


def test_the_files_of_gpudirect_storage_come_by_option_and_with_its_nodes_alone(tmp_path, no_proc, make_nodes):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    root.add("/etc/cufile.json")
    root.add("/run/udev/data/b259:0")
    off = root.roots(proc=no_proc, dev=tmp_path / "dev")
    on = off._replace(gpudirect_storage=True)
    found, remarks = common_edits(on, VERSION)
    assert "/run/udev" not in places(found)
    assert any("nvidia-fs" in remark for remark in remarks)
    for number in range(2):
        make_node(tmp_path / f"dev/nvidia-fs{number}", 511, number, mode=0o660, gid=44)
    found, remarks = common_edits(on, VERSION)
    assert [node.path for node in found.device_nodes] == ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]
    assert found.additional_gids == (44,)
    assert {path: places(found)[path] for path in ("/run/udev", "/etc/cufile.json")} == {
        "/run/udev": "/run/nvidia/driver/run/udev",
        "/etc/cufile.json": "/run/nvidia/driver/etc/cufile.json",
    }
    assert not any("nvidia-fs" in remark for remark in remarks)
    checked(found)
    assert not common_edits(off, VERSION)[0].device_nodes
    assert "/run/udev" not in places(common_edits(off, VERSION)[0])


def test_firmware_comes_from_the_kernels_own_path_first(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    parameters = tmp_path / "sys/module/firmware_class/parameters"
    parameters.mkdir(parents=True)
    (parameters / "path").write_text("/run/nvidia/driver/firmware\n")
    root.add(f"/firmware/nvidia/{VERSION}/gsp_ad10x.bin")
    root.add(f"/firmware/nvidia/{VERSION}/readme.txt")
    found, _ = common_edits(root.roots(proc=no_proc, sys=tmp_path / "sys"), VERSION)
    assert [p for p in places(found).items() if "firmware" in p[0]] == [
        (f"/firmware/nvidia/{VERSION}/gsp_ad10x.bin", f"/run/nvidia/driver/firmware/nvidia/{VERSION}/gsp_ad10x.bin")
    ]


def test_x_org_modules_are_mounted_and_linked(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add("/usr/lib/xorg/modules/drivers/nvidia_drv.so")
    root.add(f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}")
    root.add_hook()
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    extensions = "/usr/lib/xorg/modules/extensions"
    assert {"/usr/lib/xorg/modules/drivers/nvidia_drv.so", f"{extensions}/libglxserver_nvidia.so.{VERSION}"} <= set(
        places(found)
    )
    link = f"libglxserver_nvidia.so.{VERSION}::{extensions}/libglxserver_nvidia.so"
    assert link in commands(found)["create-symlinks"]


def test_an_upgraded_driver_is_seen_at_once(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    roots = root.roots(proc=no_proc)
    assert places(common_edits(roots, VERSION)[0])["/usr/lib64/libcuda.so.1"].endswith(VERSION)
    settled_edits(roots, VERSION)
    root.remove_libraries(VERSION)
    root.add_libraries("590.10")
    assert places(common_edits(roots, "590.10.0")[0])["/usr/lib64/libcuda.so.1"].endswith("590.10")
    root.add_hook()
    assert common_edits(roots, "590.10.0")[0].hooks


def test_an_unchanged_root_is_not_searched_again(tmp_path, no_proc, monkeypatch):
    roots = FakeDriverRoot(tmp_path / "root").roots(proc=no_proc)
    first = settled_edits(roots, VERSION)
    monkeypatch.setattr(edits, "find_driver_files", None)  # a second search would fail
    assert common_edits(roots, VERSION) == first


def test_old_driver_roots_are_forgotten(tmp_path, no_proc):
    for n in range(edits._ROOTS_KEPT + 2):
        common_edits(FakeDriverRoot(tmp_path / str(n)).roots(proc=no_proc), VERSION)
    assert len(edits._known_roots) == edits._ROOTS_KEPT


def test_a_whole_gpu_gets_its_node_and_the_control_nodes(tmp_path, dev, proc, gpu):
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=proc, sys=tmp_path)
    common, remarks = common_edits(roots, VERSION)
    device = device_edits(roots, gpu, None)
    document = checked(common, **{"7f-gpu-0000-65-00-0": device})
    assert document["cdiVersion"] == "0.5.0"
    assert document["devices"][0]["containerEdits"] == {
        "deviceNodes": [
            {
                "path": "/dev/nvidia0",
                "hostPath": f"{dev}/nvidia0",
                "type": "c",
                "major": 195,
                "minor": 0,
                "fileMode": 0o666,
                "permissions": "rw",
            }
        ]
    }
    assert [n["path"] for n in document["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert not [remark for remark in remarks if remark.startswith("/dev/")]
    assert document == checked(common_edits(roots, VERSION)[0], **{"7f-gpu-0000-65-00-0": device})


def test_missing_control_nodes_get_a_remark(tmp_path, no_proc):
    _, remarks = common_edits(FakeDriverRoot(tmp_path / "root").roots(dev=tmp_path, proc=no_proc), VERSION)
    assert [remark.split()[0] for remark in remarks if remark.startswith("/dev/")] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]


def test_a_partition_gets_the_gpus_node_and_its_own_capabilities(tmp_path, dev, proc, gpu, partition):
    add_capability(proc, 0, "gi3/access", 30)
    add_capability(proc, 0, "gi3/ci0/access", 31)
    (tmp_path / "sys/bus/pci/devices/0000:65:00.0/drm/card1").mkdir(parents=True)
    make_node(dev / "dri/card1", 226, 1)
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=proc, sys=tmp_path / "sys")
    found = device_edits(roots, gpu, partition)
    assert [(n.path, n.major, n.minor) for n in found.device_nodes] == [
        ("/dev/nvidia0", 195, 0),
        ("/dev/nvidia-caps/nvidia-cap30", 234, 30),
        ("/dev/nvidia-caps/nvidia-cap31", 234, 31),
    ]
    with pytest.raises(HardwareError):
        device_edits(
            roots, gpu, type(partition)(**{f: getattr(partition, f) for f in partition.__slots__} | {"ci_id": 1})
        )


def test_drm_nodes_add_their_group_and_links_by_path(tmp_path, dev, proc, gpu):
    for name in ("card1", "renderD128"):
        (tmp_path / "sys/bus/pci/devices/0000:65:00.0/drm" / name).mkdir(parents=True)
    make_node(dev / "dri/card1", 226, 1, mode=0o660, gid=44)
    make_node(dev / "dri/renderD128", 226, 128, mode=0o666)
    root = FakeDriverRoot(tmp_path / "root")
    roots = root.roots(dev=dev, proc=proc, sys=tmp_path / "sys")
    found = device_edits(roots, gpu, None)
    assert found.hooks == ()
    assert found.additional_gids == (44,)
    assert checked(found, **{"7f": found})["cdiVersion"] == "0.7.0"
    root.add_hook()
    common_edits(roots, VERSION)
    assert commands(device_edits(roots, gpu, None)) == {
        "create-symlinks": (
            "--link",
            "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
            "--link",
            "../renderD128::/dev/dri/by-path/pci-0000:65:00.0-render",
        )
    }


NAMES = st.sampled_from(
    [
        *(
            f"{folder}/{stem}.so.{v}"
            for folder in FOLDERS.values()
            for stem in ("libcuda", "libnvidia-ml")
            for v in ("1", "535.1", "580.65.06")
        ),
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cdi-hook",
        "/etc/ld.so.cache",
        "/lib64",
        "/run/nvidia-persistenced/socket",
        "/lib/firmware/nvidia/580.65.06/gsp.bin",
    ]
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40, deadline=None
)
@given(
    files=st.lists(st.tuples(NAMES, st.sampled_from(["file", "link", "folder"]), NAMES), max_size=6),
    number=st.integers(0, 1 << 60),
)
def test_the_document_is_valid_whatever_a_driver_root_holds(tmp_path, no_proc, files, number):
    base = tmp_path / f"{number}"
    base.mkdir(exist_ok=True)
    for path, kind, target in files:
        place = Path(f"{base}{path}")
        if place.exists() or place.is_symlink() or not _can_hold(place.parent):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            place.symlink_to(target)
        elif kind == "folder":
            place.mkdir()
        else:
            place.write_text("x")
            place.chmod(0o755)
    root = FakeDriverRoot.__new__(FakeDriverRoot)
    root.mount, root.host = base, "/run/nvidia/driver"
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    checked(found)
    paths = [mount.container_path for mount in found.mounts]
    assert len(paths) == len(set(paths))
    for mount in found.mounts:
        assert Path(f"{base}{mount.host_path.removeprefix('/run/nvidia/driver')}").exists()


def _can_hold(folder: Path) -> bool:
    """Return whether a folder is there or can be made: nothing on the way is a file or a link."""
    return all(not p.is_symlink() and (p.is_dir() or not p.exists()) for p in (folder, *folder.parents))


def test_a_control_node_that_changes_or_goes_counts_in_the_next_call(tmp_path, no_proc, dev):
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=no_proc, sys=tmp_path)
    known = common_edits(roots, VERSION)[0]
    node = Path(roots.dev, known.device_nodes[0].path.removeprefix("/dev/"))
    node.chmod(0o600)
    assert common_edits(roots, VERSION)[0].device_nodes[0].file_mode == 0o600
    node.unlink()
    assert known.device_nodes[0].path not in {node.path for node in common_edits(roots, VERSION)[0].device_nodes}


def test_a_gpus_node_that_changes_or_goes_counts_in_the_next_call(tmp_path, dev, proc, gpu):
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=proc, sys=tmp_path)
    node = Path(roots.dev, f"nvidia{gpu.minor}")
    node.chmod(0o600)
    assert device_edits(roots, gpu, None).device_nodes[0].file_mode == 0o600
    node.unlink()
    with pytest.raises(HardwareError, match=f"nvidia{gpu.minor} does not exist"):
        device_edits(roots, gpu, None)


def test_a_gpu_whose_minor_number_changed_gets_the_node_that_it_has_now(tmp_path, dev, proc, gpu):
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=proc, sys=tmp_path)
    make_node(dev / "nvidia9", 195, 9)
    assert device_edits(roots, replace(gpu, minor=9), None).device_nodes[0].path == "/dev/nvidia9"


def test_a_partition_that_the_kernel_no_longer_lists_is_refused(tmp_path, dev, proc, gpu, partition):
    for access, minor in (("gi3/access", 30), ("gi3/ci0/access", 31)):
        add_capability(proc, gpu.minor, access, minor)
    roots = FakeDriverRoot(tmp_path / "root").roots(dev=dev, proc=proc, sys=tmp_path)
    add_capability(proc, gpu.minor, "gi3/ci0/access", 32)
    assert device_edits(roots, gpu, partition).device_nodes[-1].minor == 32
    (proc / f"driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi3/ci0/access").unlink()
    with pytest.raises(HardwareError, match="does the instance exist"):
        device_edits(roots, gpu, partition)
