"""The image: the machines that its files are for, by their headers; and the built image, after `make image`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.support.oci_archive import BUILT, IMAGE, contents, layers, load

elf = load("elf")
ARCHITECTURES = contents.ARCHITECTURES


def header(machine: int, *, bits: int = 2, order: int = 1) -> bytes:
    """Return the start of an ELF file, little-endian."""
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + (3).to_bytes(2, "little") + machine.to_bytes(2, "little")


def test_the_machine_of_a_file_is_read_from_its_elf_header() -> None:
    assert elf.read_header(header(183)) == elf.ElfHeader(183, 64, "little")
    assert elf.read_header(header(40, bits=1)) == elf.ElfHeader(40, 32, "little")
    assert elf.read_header(header(0x1600, order=2)) == elf.ElfHeader(22, 64, "big")
    assert elf.read_header(b"#!/bin/sh\n") is None
    assert elf.read_header(b"") is None


@pytest.mark.parametrize("broken", [header(62)[:19], header(62, bits=3), header(62, order=0), b"\x7fELF"])
def test_a_broken_elf_header_is_an_error(broken: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ELF"):
        elf.read_header(broken)
    (tmp_path / "file").write_bytes(broken)
    with pytest.raises(ValueError, match=r"file: .*ELF"):
        elf.foreign_files(tmp_path, 62, 64)


def test_the_running_interpreter_is_for_this_machine() -> None:
    own = {one.machine: one for one in ARCHITECTURES.values()}.get(os.uname().machine)
    if own is None:
        pytest.skip("the image has no architecture that this machine has")
    found = elf.read_header(Path(sys.executable).read_bytes()[:20])
    assert found == elf.ElfHeader(own.elf_machine, own.elf_class, "little")


def test_a_file_for_another_machine_is_named(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/right.so").write_bytes(header(183))
    (tmp_path / "lib/wrong.so").write_bytes(header(62))
    (tmp_path / "lib/link.so").symlink_to("wrong.so")
    (tmp_path / "text").write_text("no program")
    arm64 = ARCHITECTURES["arm64"]
    assert [line.partition(":")[0] for line in elf.foreign_files(tmp_path, arm64.elf_machine, arm64.elf_class)] == [
        "lib/wrong.so"
    ]


def test_both_architectures_are_pinned_to_the_same_packages_by_hash() -> None:
    found = {}
    for name in ARCHITECTURES:
        rows = [line.split() for line in (IMAGE / f"debian-{name}.lock").read_text().splitlines()]
        assert [row[0] for row in rows] == contents.PACKAGES
        assert all(len(row) == 3 and len(row[2]) == 64 for row in rows)
        found[name] = {row[2] for row in rows}
    assert not set.intersection(*found.values()), "both architectures have the same file of a package"


def built(architecture: str) -> Path:
    folder = BUILT / architecture
    if not (folder / "digest").exists():
        pytest.skip("the image is not built here: make image")
    return folder


@pytest.fixture(params=ARCHITECTURES)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """An architecture and its tree, unpacked from the built archive as a runtime does it."""
    built(request.param)
    root = tmp_path / "root"
    for layer in layers(BUILT / "image.tar", tmp_path / "archive", request.param):
        with tarfile.open(layer) as found:
            found.extraction_filter = getattr(tarfile, "tar_filter", None)  # the first releases of 3.11 have none
            found.extractall(root)
    shutil.rmtree(tmp_path / "archive")
    return request.param, root


PROBE = """
import platform, sys
import cryptography, grpc, google.protobuf, pydantic, pynvml, re2
import dra_driver.node.daemon, dra_driver.tools.main, dra_driver.tools.webhook
print(platform.machine())
"""


@pytest.mark.timeout(600)
def test_every_program_and_library_is_for_the_images_architecture_and_imports_there(unpacked) -> None:
    name, root = unpacked
    architecture = ARCHITECTURES[name]
    files = list(elf.elf_files(root))
    assert len(files) > 50
    assert elf.foreign_files(root, architecture.elf_machine, architecture.elf_class) == []
    command = emulated(root, architecture.machine)
    for words, expected in (
        (["-c", PROBE], architecture.machine),
        (["/usr/bin/dra-driver", "--help"], "Usage: dra-driver"),
    ):
        done = subprocess.run(
            [*command, "/usr/bin/python3.11", *words],
            env={"PYTHONPATH": f"/{contents.APP}", "PATH": "/usr/bin"},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def emulated(root: Path, machine: str) -> list[str]:
    """Return the command that starts a program of a tree, with an emulator where its machine is another."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make the tree the root folder")
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert chroot is not None
    if machine == os.uname().machine:
        return [chroot, str(root)]
    emulator = shutil.which(f"qemu-{machine}-static")
    if not emulator:
        pytest.skip(f"qemu-{machine}-static is not installed (Debian: qemu-user-static); the files' headers are right")
    shutil.copyfile(emulator, root / "emulator")
    (root / "emulator").chmod(0o755)
    return [chroot, str(root), "/emulator"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_bill_of_materials_names_every_package_and_wheel_of_the_tree(name: str) -> None:
    folder = built(name)
    bill = json.loads((folder / "sbom.json").read_text())
    named = {part["purl"].partition("@")[0] for part in bill["components"]}
    assert all(part["purl"].endswith(f"arch={name}") for part in bill["components"] if "pkg:deb" in part["purl"])
    locked = {line.split()[0] for line in (IMAGE / f"debian-{name}.lock").read_text().splitlines()}
    wheels = (folder / "rootfs" / contents.APP).glob("*.dist-info")
    found = {path.name.partition("-")[0].lower().replace("_", "-") for path in wheels}
    modules = {one for one in named if one.startswith("pkg:npm/")}
    assert {f"pkg:deb/debian/{name}" for name in locked} | {f"pkg:pypi/{name}" for name in found} == named - modules
    digest = f"sha256:{bill['metadata']['component']['hashes'][0]['content']}"
    assert digest == (folder / "digest").read_text().strip()


def test_missing_programs_are_reported_before_anything_is_downloaded(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    command = [sys.executable, str(IMAGE / "build.py"), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        command, env={**os.environ, "PATH": str(empty)}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "apt-get: install apt" in done.stderr
    assert "dpkg-deb: install dpkg" in done.stderr
    assert not (tmp_path / "out").exists()
