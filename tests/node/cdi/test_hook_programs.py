"""Edits with the hook program: which hooks it is asked for, in every layout that installers make."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.hardware.facts import READ_ONLY_BIND
from dra_driver.hardware.nvidia.edits.edits import common_edits
from tests.node.cdi.support.edits_read import DEBIAN, checked, commands, places
from tests.support.nodes.driver_root import (
    FOLDERS,
    VERSION,
    FakeDriverRoot,
)


@pytest.mark.parametrize("layout", ["debian", "debian-current", "rhel", "arm", "talos", "nixos"])
@pytest.mark.parametrize("host", ["/", "/run/nvidia/driver"])
def test_with_a_hook_program_libraries_are_mounted_at_their_own_paths(tmp_path, no_proc, layout, host):
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


@pytest.mark.parametrize("place", ["/etc", "/usr/local/share", "/usr/share"])
def test_configs_are_where_programs_look_for_them_wherever_the_driver_root_has_them(tmp_path, no_proc, place):
    root = FakeDriverRoot(tmp_path / "root")
    shown = ("egl/egl_external_platform.d/20_nvidia_xcb.json", "egl/egl_external_platform.d/20_nvidia_xlib.json")
    for name in (*shown, "OpenCL/vendors/nvidia.icd", "egl/egl_external_platform.d/15_nvidia_gbm.json"):
        root.add(f"{place}/{name}")
    mounted = places(common_edits(root.roots(proc=no_proc), VERSION)[0])
    assert {name: mounted.get(f"/usr/share/{name}") for name in shown} == {name: f"{place}/{name}" for name in shown}
    assert mounted["/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"].startswith(f"{place}/")
    assert mounted["/etc/OpenCL/vendors/nvidia.icd"] == f"{place}/OpenCL/vendors/nvidia.icd"


def test_vulkans_config_may_be_in_the_driver_root_itself(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", host="/home/kubernetes/bin/nvidia")
    Path(f"{root.mount}/usr/share/vulkan/icd.d/nvidia_icd.json").unlink()
    root.add("/vulkan/icd.d/nvidia_icd.json")
    mounted = places(common_edits(root.roots(proc=no_proc), VERSION)[0])
    assert mounted["/etc/vulkan/icd.d/nvidia_icd.json"] == f"{root.host}/vulkan/icd.d/nvidia_icd.json"


def test_there_are_hooks_for_links_forward_compatibility_cache_and_parameters(tmp_path, no_proc):
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
    if not is_linked:  # ldconfig was never run there
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


def test_a_program_that_fails_on_existing_files_is_asked_only_for_the_installers_links(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook(content=b"\x7fELF create-symlinks update-ldcache")
    asked = commands(common_edits(root.roots(proc=no_proc), VERSION)[0])["create-symlinks"]
    assert f"libcuda.so.1::{DEBIAN}/libcuda.so" in asked
    assert not [word for word in asked if word.endswith("::/usr/lib64/libcuda.so.1")]


def test_nvidia_ctk_is_used_where_the_hook_program_is_missing(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root")
    root.add_hook("/usr/bin/nvidia-ctk")
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert "update-ldcache" in commands(found, argv=("nvidia-ctk", "hook"))
    assert {hook.path for hook in found.hooks} == {"/usr/bin/nvidia-ctk"}
    root.add_hook("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    found, _ = common_edits(root.roots(proc=no_proc), VERSION)
    assert {hook.path for hook in found.hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"])
def test_a_program_of_the_host_is_used_where_the_driver_comes_from_a_container(tmp_path, no_proc, path):
    root = FakeDriverRoot(tmp_path / "root", host="/run/nvidia/driver")
    roots = root.roots(proc=no_proc)
    common_edits(roots, VERSION)
    program = Path(f"{roots.host}{path}")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found, _ = common_edits(roots, VERSION)
    assert {hook.path for hook in found.hooks} == {path}


def test_a_hook_program_that_is_not_executable_is_not_used(tmp_path, no_proc):
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
def test_an_old_hook_program_is_not_asked_for_commands_that_it_lacks(tmp_path, no_proc, content, left_out):
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
