"""Edits of whole driver roots: every layout that installers make, with and without the hook program."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.cdi.spec import render
from dra_driver.hardware.nvidia.edits import edits as edits_module
from dra_driver.hardware.nvidia.edits import hooks as hooks_module
from dra_driver.hardware.nvidia.edits.edits import common_edits, device_edits
from dra_driver.hardware.nvidia.edits.ldcache import library_paths
from dra_driver.model.edits import READ_ONLY_BIND
from dra_driver.model.errors import HardwareError
from tests.cdi.support import cdi_schema
from tests.support.driver_root import (
    FOLDERS,
    VERSION,
    FakeDriverRoot,
    add_capability,
    fake_proc,
    ldcache,
    make_node,
)

KIND = "k8s.gpu.nvidia.com/claim"
DEBIAN = "/usr/lib/x86_64-linux-gnu"


def places(edits):
    """Return container path -> host path of all mounts."""
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def commands(edits, argv=("nvidia-cdi-hook",)):
    """Return command -> arguments of all hooks."""
    assert all(hook.args[: len(argv)] == argv and hook.name == "createContainer" for hook in edits.hooks)
    return {hook.args[len(argv)]: hook.args[len(argv) + 1 :] for hook in edits.hooks}


def checked(common, **devices):
    """Render, check against the schema, and give the document."""
    document = json.loads(render(KIND, devices or {"7f-gpu": common}, common))
    cdi_schema.check(document)
    return document


@pytest.fixture
def no_proc(tmp_path) -> Path:
    return tmp_path / "no-proc"


@pytest.mark.parametrize("layout", ["debian", "debian-current", "rhel", "arm"])
@pytest.mark.parametrize("host", ["/", "/run/nvidia/driver"])
def test_with_a_hook_program_libraries_stand_at_their_own_paths(tmp_path, no_proc, layout, host):
    root = FakeDriverRoot(tmp_path / "root", layout, host=host)
    root.add_hook()
    prefix = host.rstrip("/")
    found, remarks = common_edits(root.roots(proc=no_proc), VERSION)
    folder = FOLDERS[layout]
    expected = {
        *(f"{folder}/{p.name}" for p in Path(f"{root.mount}{folder}").glob(f"*.so.{VERSION}")),
        f"{folder}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{folder}/libnvidia-egl-gbm.so.1.1.2",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
        *(f"/usr/bin/{name}" for name in ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-imex")),
        "/usr/bin/nvidia-cuda-mps-control",
    }
    assert set(places(found)) == expected
    for path, host_path in places(found).items():
        assert host_path == prefix + path.replace("/etc/vulkan", "/usr/share/vulkan")
    assert {mount.options for mount in found.mounts} == {READ_ONLY_BIND}
    assert found.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert {hook.path for hook in found.hooks} == {f"{prefix}/usr/bin/nvidia-cdi-hook"}
    assert not [remark for remark in remarks if not remark.startswith("/dev/")]
    checked(found)


def test_hooks_do_links_forward_compatibility_cache_and_parameters(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook()
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    asked = commands(found)
    assert list(asked) == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert {
        f"libcuda.so.1::{DEBIAN}/libcuda.so",
        f"libnvidia-ml.so.1::{DEBIAN}/libnvidia-ml.so",
        f"libnvidia-opticalflow.so.1::{DEBIAN}/libnvidia-opticalflow.so",
        f"libGLX_nvidia.so.{VERSION}::{DEBIAN}/libGLX_indirect.so.0",
        f"../libnvidia-allocator.so.1::{DEBIAN}/gbm/nvidia-drm_gbm.so",
        f"libnvidia-vulkan-producer.so.{VERSION}::{DEBIAN}/libnvidia-vulkan-producer.so",
    } <= set(asked["create-symlinks"])
    assert asked["enable-cuda-compat"] == (f"--host-driver-version={VERSION}",)
    assert asked["update-ldcache"] == ("--folder", DEBIAN, "--folder", f"{DEBIAN}/vdpau")
    assert asked["disable-device-node-modification"] == ()
    assert {hook.env for hook in found.hooks} == {("NVIDIA_CTK_DEBUG=false",)}


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "without links"])
def test_with_a_hook_program_every_loader_finds_the_names_that_programs_load(tmp_path, no_proc, is_linked):
    root = FakeDriverRoot(tmp_path / "root", "debian-current")
    root.add_hook()
    if not is_linked:  # nobody ran ldconfig there
        for link in Path(f"{root.mount}{root.folder}").iterdir():
            if link.is_symlink():
                link.unlink()
    asked = commands(common_edits(root.roots(proc=no_proc), VERSION)[0])["create-symlinks"]
    pairs = dict(word.split("::")[::-1] for word in asked if word != "--link")
    for name, stem in (
        ("libcuda.so.1", "libcuda"),
        ("libnvidia-ml.so.1", "libnvidia-ml"),
        ("libnvidia-ml.so", "libnvidia-ml"),
        ("libnvidia-nvvm.so.4", "libnvidia-nvvm"),
        (f"libnvidia-gpucomp.so.{VERSION}", "libnvidia-gpucomp"),
    ):
        for folder in (DEBIAN, "/usr/lib64"):
            assert pairs[f"{folder}/{name}"] == f"{root.folder}/{stem}.so.{VERSION}"
    assert pairs[f"{root.folder}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert f"{root.folder}/libnvidia-gpucomp.so.{VERSION}" not in pairs
    assert "/usr/lib64/libnvidia-gpucomp.so.1" not in pairs


def test_a_program_that_fails_on_what_an_image_has_is_asked_for_the_installers_links_alone(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook(content=b"\x7fELF create-symlinks update-ldcache")
    asked = commands(common_edits(root.roots(proc=no_proc), VERSION)[0])["create-symlinks"]
    assert f"libcuda.so.1::{DEBIAN}/libcuda.so" in asked
    assert not [word for word in asked if word.endswith("::/usr/lib64/libcuda.so.1")]


def test_nvidia_ctk_serves_where_the_hook_program_is_missing(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook("/usr/bin/nvidia-ctk")
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert "update-ldcache" in commands(found, argv=("nvidia-ctk", "hook"))
    assert {hook.path for hook in found.hooks} == {"/usr/bin/nvidia-ctk"}
    root.add_hook("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert {hook.path for hook in found.hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


def test_the_operators_toolkit_folder_is_used_at_its_own_path(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    program = Path(hooks_module.OPERATOR_TOOLKIT) / "nvidia-cdi-hook"
    common_edits(root.roots(proc=no_proc), VERSION)
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert {hook.path for hook in found.hooks} == {str(program)}


def test_a_hook_program_that_is_not_executable_is_none(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add("/usr/bin/nvidia-cdi-hook")
    (root.mount / "usr/local/bin").mkdir(parents=True)
    (root.mount / "usr/local/bin/nvidia-cdi-hook").mkdir()
    assert common_edits(root.roots(proc=no_proc), VERSION)[0].hooks == ()


@pytest.mark.parametrize(
    ("content", "left_out"),
    [
        (b"\x7fELF..create-symlinks..update-ldcache..", {"enable-cuda-compat", "disable-device-node-modification"}),
        (b"\x7fELF..create-symlinks..update-ldcache..enable-cuda-compat", {"disable-device-node-modification"}),
        (b"\x7fELF.. nothing that we know", set()),
        (b"#!/bin/sh\nexec something create-symlinks\n", set()),
    ],
)
def test_an_old_hook_program_is_not_asked_for_what_it_does_not_know(tmp_path, no_proc, content, left_out):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook(content=content)
    found, remarks = common_edits(root.roots(proc=no_proc), VERSION)
    every = {"create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification"}
    assert set(commands(found)) == every - left_out
    assert all(any(command in remark for remark in remarks) for command in left_out)


def test_a_wrapper_script_is_judged_by_the_program_behind_it(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    root.add_hook("/usr/local/nvidia/toolkit/nvidia-cdi-hook.real", b"\x7fELF create-symlinks update-ldcache")
    assert set(commands(common_edits(root.roots(proc=no_proc), VERSION)[0])) == {"create-symlinks", "update-ldcache"}


@pytest.mark.parametrize("layout", ["debian", "debian-current", "rhel", "arm"])
def test_without_a_hook_program_libraries_stand_where_every_loader_looks(tmp_path, no_proc, layout, caplog):
    root = FakeDriverRoot(tmp_path / "root", layout, host="/run/nvidia/driver")
    with caplog.at_level(logging.WARNING):
        found, remarks = common_edits(root.roots(proc=no_proc), VERSION)
        common_edits(root.roots(proc=no_proc), VERSION)
    folder = FOLDERS[layout]
    triplet = "aarch64-linux-gnu" if layout == "arm" else f"{os.uname().machine}-linux-gnu"
    mounted = places(found)
    for where in (f"/usr/lib/{triplet}", "/usr/lib64"):
        for stem, names in {
            "libcuda": ("libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}"),
            "libnvidia-ml": ("libnvidia-ml.so.1", "libnvidia-ml.so"),
            "libnvidia-ptxjitcompiler": ("libnvidia-ptxjitcompiler.so.1",),
            "libnvidia-nvvm": ("libnvidia-nvvm.so.4",),
            "libnvidia-gpucomp": (f"libnvidia-gpucomp.so.{VERSION}",),
            "libGLX_nvidia": ("libGLX_nvidia.so.0",),
        }.items():
            for name in names:
                assert mounted[f"{where}/{name}"] == f"/run/nvidia/driver{folder}/{stem}.so.{VERSION}"
        assert mounted[f"{where}/libGLX_indirect.so.0"].endswith(f"libGLX_nvidia.so.{VERSION}")
        assert mounted[f"{where}/gbm/nvidia-drm_gbm.so"].endswith(f"libnvidia-allocator.so.{VERSION}")
        assert f"{where}/libnvidia-gpucomp.so.1" not in mounted  # its SONAME has the driver's version
    assert mounted[f"{folder}/libcuda.so.{VERSION}"] == f"/run/nvidia/driver{folder}/libcuda.so.{VERSION}"
    assert len(mounted) == len(found.mounts)  # one mount for each place
    assert found.hooks == ()
    assert found.env == ("NVIDIA_VISIBLE_DEVICES=void",)  # no LD_LIBRARY_PATH
    assert any("nvidia-cdi-hook" in remark and "/usr/lib64" in remark for remark in remarks)
    assert len([r for r in caplog.records if "left out of containers" in r.getMessage()]) == 1
    checked(found)


@pytest.mark.parametrize("spelled", ["580.65.06", "580.65.6"])
def test_the_loaded_version_wins_where_two_are_installed(tmp_path, no_proc, spelled):
    root = FakeDriverRoot(tmp_path / "root", version="580.65.06")
    root.add_libraries("590.10")
    root.add_hook()
    found, remarks = common_edits(root.roots(proc=no_proc), spelled)
    assert f"{DEBIAN}/libcuda.so.580.65.06" in places(found)
    assert not [path for path in places(found) if "590.10" in path]
    assert "--host-driver-version=580.65.06" in commands(found)["enable-cuda-compat"]
    assert not [remark for remark in remarks if "loaded" in remark]


def test_the_loaded_version_is_looked_for_in_every_folder(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", "rhel", version="535.1")
    root.folder = FOLDERS["debian"]
    root.add_libraries("580.65.06")
    found, _ = common_edits(root.roots(proc=no_proc), "580.65.6")
    assert places(found)["/usr/lib64/libcuda.so.1"] == f"{DEBIAN}/libcuda.so.580.65.06"
    assert not [path for path in places(found).values() if "535.1" in path]


def settled_look(roots, version):
    """Look until the look is kept."""
    deadline = time.monotonic() + 5
    while not (edits_module._looks.get(roots) and edits_module._looks[roots].is_settled):
        assert time.monotonic() < deadline
        found = common_edits(roots, version)
    return found


def test_another_loaded_version_is_looked_for_though_no_file_changed(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", version="535.1")
    root.add_libraries("590.10")
    roots = root.roots(proc=no_proc)
    settled_look(roots, "535.1")
    assert places(common_edits(roots, "590.10")[0])["/usr/lib64/libcuda.so.1"].endswith("590.10")


def test_the_newest_is_taken_where_no_version_is_known(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", version="99.5")
    root.add_libraries("535.1")
    found, remarks = common_edits(root.roots(proc=no_proc, sys=tmp_path), None)
    assert places(found)["/usr/lib64/libcuda.so.1"].endswith("535.1")
    assert not [remark for remark in remarks if "loaded" in remark]


def test_folders_that_are_one_and_the_same_give_each_library_once(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook()
    before = places(common_edits(root.roots(proc=no_proc), VERSION)[0])
    (root.mount / "lib/firmware").rename(root.mount / "usr/lib/firmware")
    (root.mount / "lib").rmdir()
    root.link("/lib", "usr/lib")
    root.link("/usr/lib64", "lib/x86_64-linux-gnu")
    found = places(common_edits(root.roots(proc=no_proc), VERSION)[0])
    assert len(found) == len(before)
    assert sorted(found.values()) == sorted(
        path.replace("/lib/firmware", "/usr/lib/firmware", 1) for path in before.values()
    )


def test_libraries_of_another_version_are_remarked(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", version="535.1")
    found, remarks = common_edits(root.roots(proc=no_proc), "580.65.6")
    assert f"{DEBIAN}/libcuda.so.535.1" in places(found)
    assert any("580.65.6 is loaded" in remark and "535.1" in remark for remark in remarks)


def test_the_kernel_module_names_the_version_when_the_library_does_not(tmp_path):
    root = FakeDriverRoot(tmp_path / "root", version="535.104.05")
    root.add_libraries("590.10")
    proc = fake_proc(tmp_path / "proc", version="535.104.05")
    found, _ = common_edits(root.roots(proc=proc, sys=tmp_path), None)
    assert places(found)["/usr/lib64/libcuda.so.1"].endswith("535.104.05")
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10  Sat Aug 19 01:15:15 UTC 2023\n"
    )
    found, _ = common_edits(root.roots(proc=proc, sys=tmp_path), None)
    assert places(found)["/usr/lib64/libcuda.so.1"].endswith("590.10")


def test_a_folder_that_only_the_loaders_cache_knows_is_found(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", "odd", host="/run/nvidia/driver")
    assert any("no libcuda" in remark for remark in common_edits(root.roots(proc=no_proc), VERSION)[1])
    root.add_ldcache({"libc.so.6": "/lib/libc.so.6", "libcuda.so.1": "/opt/vendor/lib/libcuda.so.1"})
    found, remarks = common_edits(root.roots(proc=no_proc), VERSION)
    assert places(found)[f"/opt/vendor/lib/libcuda.so.{VERSION}"].startswith("/run/nvidia/driver/opt/vendor/lib")
    assert "/usr/lib64/libcuda.so.1" in places(found)
    assert not any("no libcuda" in remark for remark in remarks)


@given(
    st.dictionaries(st.from_regex(r"lib[a-z]{1,6}\.so\.1", fullmatch=True), st.just("/usr/lib/x"), max_size=5),
    st.booleans(),
)
def test_the_loaders_cache_is_read_as_written(entries, old_header):
    cache = ldcache(entries, old_header=old_header)
    for name, path in entries.items():
        assert library_paths(cache, name) == (path,)
    assert library_paths(cache, "libnone.so.1") == ()


@given(st.binary(max_size=200), st.integers(0, 300))
def test_a_broken_cache_holds_nothing_and_harms_nothing(noise, cut):
    assert library_paths(noise, "libcuda.so.1") == ()
    library_paths(ldcache({"libcuda.so.1": "/usr/lib/libcuda.so.1"})[:cut] + noise, "libcuda.so.1")


def test_links_inside_a_driver_container_do_not_lead_to_the_host(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    root.add("/opt/real/libcuda-file")
    root.link(f"{DEBIAN}/libcuda.so.{VERSION}", "/opt/real/libcuda-file")
    root.link("/usr/bin/nvidia-smi", "../../../../../opt/real/nvidia-smi")
    root.add("/opt/real/nvidia-smi", mode=0o755)
    root.link(f"{DEBIAN}/libnvidia-ml.so.{VERSION}", "/nowhere")
    mounted = places(common_edits(root.roots(proc=no_proc), VERSION)[0])
    assert mounted[f"{DEBIAN}/libcuda.so.{VERSION}"] == "/run/nvidia/driver/opt/real/libcuda-file"
    assert mounted["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/opt/real/nvidia-smi"
    assert f"{DEBIAN}/libnvidia-ml.so.{VERSION}" not in mounted


def test_a_driver_root_without_a_driver_is_remarked_and_gives_the_rest(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.remove_libraries(VERSION)
    found, remarks = common_edits(root.roots(proc=no_proc), VERSION)
    assert any("no libcuda" in remark and str(root.mount) in remark for remark in remarks)
    assert set(places(found)) >= {"/usr/bin/nvidia-smi"}
    assert not [path for path in places(found) if ".so" in path]
    checked(found)


def test_a_driver_without_cuda_is_found_by_its_management_library(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    Path(f"{root.mount}{DEBIAN}/libcuda.so.{VERSION}").unlink()
    assert "/usr/lib64/libnvidia-ml.so.1" in places(common_edits(root.roots(proc=no_proc), VERSION)[0])


def test_sockets_are_mounted_only_while_they_exist(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    assert not [p for p in places(common_edits(root.roots(proc=no_proc), VERSION)[0]) if p.startswith(("/run", "/tmp"))]
    root.add("/run/nvidia-persistenced/socket")
    (root.mount / "tmp/nvidia-mps").mkdir(parents=True)
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    sockets = {m.container_path: m for m in found.mounts if m.container_path.startswith(("/run", "/tmp"))}
    assert set(sockets) == {"/run/nvidia-persistenced/socket", "/tmp/nvidia-mps"}
    assert sockets["/tmp/nvidia-mps"].options == ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    assert sockets["/tmp/nvidia-mps"].host_path == "/run/nvidia/driver/tmp/nvidia-mps"
    (root.mount / "run/nvidia-persistenced/socket").unlink()
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert "/run/nvidia-persistenced/socket" not in places(found)


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


def test_x_org_modules_and_their_link(tmp_path, no_proc):
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
    time.sleep(0.06)  # let the folders come of age, so that the first look is kept
    common_edits(roots, VERSION)
    root.remove_libraries(VERSION)
    root.add_libraries("590.10")
    assert places(common_edits(roots, "590.10.0")[0])["/usr/lib64/libcuda.so.1"].endswith("590.10")
    root.add_hook()
    assert common_edits(roots, "590.10.0")[0].hooks


def test_an_unchanged_root_is_not_searched_again(tmp_path, no_proc, monkeypatch):
    roots = FakeDriverRoot(tmp_path / "root").roots(proc=no_proc)
    first = settled_look(roots, VERSION)
    monkeypatch.setattr(edits_module, "find_driver_files", None)  # a second search would fail
    assert common_edits(roots, VERSION) == first


def test_looks_at_old_roots_are_forgotten(tmp_path, no_proc):
    for n in range(edits_module._LOOKS_KEPT + 2):
        common_edits(FakeDriverRoot(tmp_path / str(n)).roots(proc=no_proc), VERSION)
    assert len(edits_module._looks) == edits_module._LOOKS_KEPT


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


def test_missing_control_nodes_are_remarked(tmp_path, no_proc):
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


def test_drm_nodes_bring_their_group_and_links_by_path(tmp_path, dev, proc, gpu):
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
def test_whatever_stands_in_a_driver_root_the_document_is_valid(tmp_path, no_proc, files, number):
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
