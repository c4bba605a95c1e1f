"""What a container really gets: podman and runc read our files and list nodes, mounts, environment and hooks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.hardware.facts import DeviceNode, Edits
from dra_driver.hardware.nvidia.edits.edits import common_edits, device_edits
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import Roots
from dra_driver.node.cdi import CdiStore, claim_file, device_id, device_name, kind, render
from tests.node.cdi.support import cdi_schema
from tests.support.nodes.driver_root import VERSION, FakeDriverRoot, add_capability
from tests.support.programs.podman import Podman

pytestmark = pytest.mark.podman

DRIVER = "gpu.nvidia.com"
UID = "7f3a9c1e-0000-4000-8000-000000000001"
NODES = "find /dev -name 'nvidia*' -type c -exec stat -c '%n %t:%T %a' {} ';'"


@pytest.fixture(scope="module")
def podman(tmp_path_factory) -> Podman:
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture
def driver_root(tmp_path) -> FakeDriverRoot:
    """Return a driver root whose host paths exist on this machine, as the runtime needs them."""
    mount = tmp_path / "driver"
    return FakeDriverRoot(mount, host=str(mount))


@pytest.fixture
def roots(driver_root, dev, proc, tmp_path) -> Roots:
    return driver_root.roots(dev=dev, proc=proc, sys=tmp_path)


def prepare(podman: Podman, devices: dict[str, Edits], common: Edits, uid: str = UID) -> list[str]:
    """Write the file of one claim, and return the ids that the kubelet would pass on."""
    document = render(kind(DRIVER), {device_name(uid, name): edits for name, edits in devices.items()}, common)
    cdi_schema.check(json.loads(document))
    CdiStore(podman.cdi).write(claim_file(DRIVER, uid), document)
    return [device_id(DRIVER, uid, name) for name in devices]


def lines(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_a_container_with_a_whole_gpu_has_nodes_libraries_and_environment(podman, roots, gpu):
    common, _ = common_edits(roots, VERSION)
    ids = prepare(podman, {"gpu-0000-65-00-0": device_edits(roots, gpu, None)}, common)

    assert lines(podman.run(ids, NODES)) == [
        "/dev/nvidia-modeset c3:fe 666",
        "/dev/nvidia-uvm 1fe:0 666",
        "/dev/nvidia-uvm-tools 1fe:1 666",
        "/dev/nvidia0 c3:0 666",
        "/dev/nvidiactl c3:ff 666",
    ]
    environment = lines(podman.run(ids, "env"))
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    assert not [line for line in environment if line.startswith("LD_LIBRARY_PATH")]

    names = [f"/usr/lib64/{n}" for n in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")]
    names.append("/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4")
    content = podman.run(ids, "cat " + " ".join(names)).stdout.splitlines()
    assert content == [
        f"/usr/lib/x86_64-linux-gnu/{stem}.so.{VERSION}"
        for stem in ("libcuda", "libcuda", "libnvidia-ml", "libnvidia-nvvm")
    ]


def test_a_container_has_our_mounts_and_no_others_and_all_are_read_only(podman, roots, gpu):
    common, _ = common_edits(roots, VERSION)
    ids = prepare(podman, {"gpu-0000-65-00-0": device_edits(roots, gpu, None)}, common)
    mounts = [line.split() for line in lines(podman.run(ids, "cat /proc/mounts"))]
    ours = {words[1]: words[3].split(",") for words in mounts if words[1].startswith(("/usr", "/lib", "/etc/vulkan"))}
    assert set(ours) == {mount.container_path for mount in common.mounts}
    assert all({"ro", "nosuid", "nodev"} <= set(options) for options in ours.values())


def test_a_user_other_than_root_reads_the_libraries_and_may_open_the_nodes(podman, roots, gpu):
    common, _ = common_edits(roots, VERSION)
    ids = prepare(podman, {"gpu-0000-65-00-0": device_edits(roots, gpu, None)}, common)
    nodes = "for node in /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm; do test -r $node -a -w $node && echo $node; done"
    done = podman.run(ids, f"id -u; {nodes}; cat /usr/lib64/libcuda.so.1", user="1000:1000")
    assert lines(done) == sorted(
        ["1000", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"]
    )


def test_a_driver_in_red_hats_layout_is_found_in_an_image_of_that_layout(tmp_path, dev, proc, gpu):
    mount = tmp_path / "driver"
    roots = FakeDriverRoot(mount, "rhel", host=str(mount)).roots(dev=dev, proc=proc, sys=tmp_path)
    podman = Podman(tmp_path / "podman", links={"/lib64": "usr/lib64", "/lib": "usr/lib"})
    common, _ = common_edits(roots, VERSION)
    ids = prepare(podman, {"gpu": device_edits(roots, gpu, None)}, common)
    names = [f"/lib64/{name}" for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")]
    done = podman.run(ids, "cat " + " ".join(names), user="1000:1000")
    assert lines(done) == sorted(f"/usr/lib64/{stem}.so.{VERSION}" for stem in ("libcuda", "libcuda", "libnvidia-ml"))


def test_a_container_with_a_partition_has_capability_nodes_that_the_host_lacks(podman, roots, proc, gpu, partition):
    add_capability(proc, 0, "gi3/access", 30)
    add_capability(proc, 0, "gi3/ci0/access", 31)
    ids = prepare(podman, {"mig": device_edits(roots, gpu, partition)}, Edits(env=("A=b",)))
    assert lines(podman.run(ids, NODES)) == [
        "/dev/nvidia-caps/nvidia-cap30 ea:1e 444",
        "/dev/nvidia-caps/nvidia-cap31 ea:1f 444",
        "/dev/nvidia0 c3:0 666",
    ]


def test_a_container_gets_the_devices_it_names_and_no_other(podman, roots, gpu):
    second = NvidiaGpu(uuid="GPU-2", pci_address="0000:66:00.0", minor=1, memory_bytes=1)
    devices = {"gpu-0": device_edits(roots, gpu, None), "gpu-1": device_edits(roots, second, None)}
    one, two = prepare(podman, devices, Edits(env=("NVIDIA_VISIBLE_DEVICES=void",)))
    assert lines(podman.run([two], NODES)) == ["/dev/nvidia1 c3:1 666"]
    assert lines(podman.run([one, two], NODES)) == ["/dev/nvidia0 c3:0 666", "/dev/nvidia1 c3:1 666"]


@pytest.mark.parametrize(("uid", "version"), [("af3a", "0.3.0"), ("7f3a", "0.5.0")])
def test_documents_at_their_lowest_version_are_resolved(podman, make_nodes, uid, version):
    ids = prepare(podman, {"gpu": Edits(device_nodes=(DeviceNode("/dev/nvidia5", 195, 5),))}, Edits(), uid)
    assert json.loads((podman.cdi / claim_file(DRIVER, uid)).read_bytes())["cdiVersion"] == version
    assert lines(podman.run(ids, NODES)) == ["/dev/nvidia5 c3:5 666"]


def test_hooks_run_with_their_arguments_and_environment(podman, driver_root, roots, gpu, tmp_path):
    record = tmp_path / "record"
    script = f'#!/bin/sh\ncat >/dev/null\necho "$NVIDIA_CTK_DEBUG $*" >> {record}\n'
    driver_root.add_hook(content=script.encode())
    common, _ = common_edits(roots, VERSION)
    ids = prepare(podman, {"gpu": device_edits(roots, gpu, None)}, common)
    assert podman.run(ids, "true").returncode == 0
    ran = record.read_text().splitlines()
    assert [line.split()[:2] for line in ran] == [
        ["false", "create-symlinks"],
        ["false", "enable-cuda-compat"],
        ["false", "update-ldcache"],
        ["false", "disable-device-node-modification"],
    ]
    assert ran[1].endswith(f"--host-driver-version={VERSION}")


def test_devices_of_a_removed_file_are_not_resolved(podman, make_nodes):
    ids = prepare(podman, {"gpu": Edits(device_nodes=(DeviceNode("/dev/nvidia5", 195, 5),))}, Edits(), "b7")
    assert podman.run(ids, "true").returncode == 0
    CdiStore(podman.cdi).remove(claim_file(DRIVER, "b7"))
    done = podman.run(ids, "true")
    assert done.returncode != 0
    assert "unresolvable" in done.stderr


def test_a_half_written_file_does_not_disturb_the_others(podman, make_nodes):
    ids = prepare(podman, {"gpu": Edits(device_nodes=(DeviceNode("/dev/nvidia5", 195, 5),))}, Edits(), "c7")
    Path(podman.cdi / f".{claim_file(DRIVER, 'c8')}.unfinished").write_text('{"cdiVersion": "0.5')
    assert lines(podman.run(ids, NODES)) == ["/dev/nvidia5 c3:5 666"]


PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        int (*number)(void) = library ? (int (*)(void)) dlsym(library, "number") : 0;
        printf("%s %d\\n", names[i], number ? number() : -1);
    }
}
"""


@pytest.mark.gcc
@pytest.mark.parametrize("layout", ["debian", "debian-current", "rhel"])
def test_a_real_loader_finds_the_libraries_without_hook_cache_or_variable(tmp_path, layout):
    if shutil.which("gcc") is None:
        pytest.skip("gcc not installed")
    mount = tmp_path / "driver"
    driver = FakeDriverRoot(mount, layout, host=str(mount))
    (tmp_path / "number.c").write_text("int number(void) { return 42; }")
    (tmp_path / "program.c").write_text(PROGRAM)
    for stem, soname in (("libcuda", "libcuda.so.1"), ("libnvidia-nvvm", "libnvidia-nvvm.so.4")):
        library = f"{mount}{driver.folder}/{stem}.so.{VERSION}"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", library, tmp_path / "number.c"], check=True
        )
    program = tmp_path / "program"
    subprocess.run(["gcc", "-o", program, tmp_path / "program.c", "-ldl"], check=True)
    needed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    files = {path: Path(path) for path in re.findall(r"(/\S+) \(", needed)}
    podman = Podman(tmp_path / "podman", {"/bin/program": program, **files})

    common, _ = common_edits(driver.roots(dev=tmp_path, proc=tmp_path, sys=tmp_path), VERSION)
    ids = prepare(podman, {"gpu": Edits(device_nodes=(DeviceNode("/dev/nvidia5", 195, 5),))}, common)
    names = ["libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}", "libnvidia-nvvm.so.4"]
    assert lines(podman.run(ids, f"program {' '.join(names)}")) == sorted(f"{name} 42" for name in names)
