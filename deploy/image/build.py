"""The driver's image for amd64 and arm64: a root file system each, one OCI archive, bills of materials.

    python deploy/image/build.py [--architecture arm64] [--output FOLDER] [--reference YOUR-REGISTRY/dra-driver:0.1.0]

In: Debian's Python as .deb files (debian-ARCHITECTURE.lock) and the wheels of requirements.lock that the package needs,
all pinned by hash; the package itself. Out: `image.tar` (an OCI layout whose index has every architecture), and for
each architecture a folder with `rootfs/`, `Dockerfile`, `digest` (of the tree's content) and `sbom.json` (CycloneDX).
The same inputs give the same bytes. Nothing of an image is run: packages and wheels are unpacked. The image contains no
shell, package manager or compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import bills
import debian
import elf
import needs
import oci
import wheels
from contents import APP, ARCHITECTURES, PASSWD, PROGRAM, REPOSITORY_NAME, Architecture, configuration, dockerfile
from debian import Deb, Packages
from origin import Origin, origin

REPOSITORY = Path(__file__).resolve().parents[2]
_MEGABYTES = (
    700  # for one architecture: 150 in the tree, 60 in the archive, the rest are downloads and pip's own copies
)


def main() -> int:
    """Build everything; print its path, size and digest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "image")
    parser.add_argument(
        "--reference", default="", help=f"name of the image in the archive (default {REPOSITORY_NAME}:VERSION)"
    )
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="only this one (default: all)")
    parser.add_argument("--source", default="", metavar="URL", help="where the repository can be read (a label)")
    parser.add_argument("--relock", action="store_true", help="take Debian's newest packages and write the locks")
    options = parser.parse_args()
    names = options.architecture or list(ARCHITECTURES)
    lacking = needs.missing(options.output, _MEGABYTES * len(names))
    if lacking:
        sys.exit("\n  ".join(["the image can't be built here; this is missing:", *lacking]))
    reference = options.reference or f"{REPOSITORY_NAME}:{version()}"
    manifest = build(options.output, reference, names, origin(options.source), relock=options.relock)
    packed = (options.output / "image.tar").stat().st_size
    print(
        f"{reference} ({', '.join(names)}): {options.output / 'image.tar'}, {packed / 1e6:.1f} MB\nindex    {manifest}"
    )
    for name in names:
        print(f"{name:<8} {(options.output / name / 'digest').read_text().strip()}")
    return 0


def version() -> str:
    """Return the package's version, as this checkout has it."""
    text = (REPOSITORY / "dra_driver" / "__init__.py").read_text()
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def build(output: Path, reference: str, names: list[str], came_from: Origin, *, relock: bool = False) -> str:
    """Build the image for some architectures; return the digest of its index."""
    settings = configuration(version(), came_from.labels())
    for architecture in (ARCHITECTURES[name] for name in names):
        _build_tree(architecture, output / architecture.name, relock=relock)
        (output / architecture.name / "Dockerfile").write_text(dockerfile(settings))
    with needs.step("packing image.tar"):
        trees = {name: output / name / "rootfs" for name in names}
        return oci.write(output / "image.tar", trees, reference, settings, created=came_from.created)


def _build_tree(architecture: Architecture, folder: Path, *, relock: bool) -> None:
    """Make the tree of one architecture, its digest and its bill of materials."""
    tree = folder / "rootfs"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    with needs.step(f"{architecture.name}: Debian's packages"):
        debs = Packages(architecture, folder).fetch(relock=relock)
        debian.unpack(debs, tree)
    with needs.step(f"{architecture.name}: wheels"):
        found = wheels.install(architecture, tree / APP, folder)
    with needs.step(f"{architecture.name}: the driver, and compiling to bytecode"):
        _install_driver(tree)
        _finish(tree, architecture, debs)
    wrong = elf.foreign_files(tree, architecture.elf_machine, architecture.elf_class)
    if wrong:
        sys.exit("\n  ".join([f"files that are not for {architecture.name}:", *wrong]))
    _describe(folder, architecture, debs, found)


def _describe(folder: Path, architecture: Architecture, debs: list[Deb], found: list[wheels.Wheel]) -> None:
    digest = oci.tree_digest(folder / "rootfs")
    (folder / "digest").write_text(digest + "\n")
    subject = bills.subject("container", version(), digest.removeprefix("sha256:"))
    packages = [bills.of_deb(deb, architecture.name, debian.licenses(folder / "rootfs", deb.name)) for deb in debs]
    bills.write(folder / "sbom.json", subject, [*packages, *map(bills.of_wheel, found), *bills.vendored()])


def _install_driver(tree: Path) -> None:
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(REPOSITORY / "dra_driver", tree / APP / "dra_driver", ignore=unwanted)
    shutil.copytree(REPOSITORY / "deviceclasses", tree / APP / "dra_driver" / "deviceclasses")
    program = tree / "usr/bin/dra-driver"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text(PASSWD)
    (tree / "usr/bin/python3").symlink_to("python3.11")


def _finish(tree: Path, architecture: Architecture, debs: list[Deb]) -> None:
    """Remove unused files, compile the modules, and remove everything that differs from build to build."""
    for name in architecture.unused:
        shutil.rmtree(tree / name, ignore_errors=True)
    debian.keep_copyrights(tree)
    debian.record(debs, tree)
    _compile(tree, "usr/lib/python3.11", APP)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or (os.access(path, os.X_OK) and path.stat().st_mode & 0o111) else 0o644)
    for record in tree.glob(f"{APP}/*.dist-info/direct_url.json"):
        record.unlink()


def _compile(tree: Path, *folders: str) -> None:
    """Compile every module, in a process of its own: bytecode depends on what a process has compiled before."""
    command = [sys.executable, "-I", "-m", "compileall", "-qq", "-s", str(tree), "-p", "/"]
    command += ["--invalidation-mode", "unchecked-hash"]
    # Its status is 1 where a file is no Python of this version; packages bring templates and such.
    subprocess.run([*command, *(str(tree / folder) for folder in folders)], check=False)


if __name__ == "__main__":
    sys.exit(main())
