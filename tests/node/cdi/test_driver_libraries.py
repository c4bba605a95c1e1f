"""Which of the driver's libraries are mounted, of which version, and where loaders look for them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.hardware.nvidia.driver_root import library_paths
from dra_driver.hardware.nvidia.edits.edits import common_edits
from tests.node.cdi.support.edits_read import DEBIAN, checked, commands, places, settled_edits
from tests.support.nodes.driver_root import (
    FOLDERS,
    VERSION,
    FakeDriverRoot,
    fake_proc,
    ldcache,
)


@pytest.mark.parametrize("layout", ["debian", "debian-current", "rhel", "arm", "talos", "nixos"])
def test_without_a_hook_program_libraries_are_mounted_where_every_loader_looks(tmp_path, no_proc, layout, caplog):
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
def test_the_loaded_version_is_mounted_where_two_are_installed(tmp_path, no_proc, spelled):
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


def test_another_loaded_version_is_looked_for_though_no_file_changed(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", version="535.1")
    root.add_libraries("590.10")
    roots = root.roots(proc=no_proc)
    settled_edits(roots, "535.1")
    assert places(common_edits(roots, "590.10")[0])["/usr/lib64/libcuda.so.1"].endswith("590.10")


def test_the_newest_is_taken_where_no_version_is_known(tmp_path, no_proc):
    root = FakeDriverRoot(tmp_path / "root", version="99.5")
    root.add_libraries("535.1")
    found, remarks = common_edits(root.roots(proc=no_proc, sys=tmp_path), None)
    assert places(found)["/usr/lib64/libcuda.so.1"].endswith("535.1")
    assert not [remark for remark in remarks if "loaded" in remark]


def test_a_folder_under_two_names_gives_each_library_once(tmp_path, no_proc):
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


def test_libraries_of_another_version_get_a_remark(tmp_path, no_proc):
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


def test_a_folder_that_only_the_loaders_cache_lists_is_found(tmp_path, no_proc):
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
def test_a_broken_cache_raises_nothing_and_noise_holds_no_library(noise, cut):
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


def test_a_driver_root_without_libraries_gets_a_remark_and_gives_the_rest(tmp_path, no_proc):
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
