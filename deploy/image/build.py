"""The driver's image: one root file system, as a folder and as an OCI archive, with a bill of materials beside it.

    python deploy/image/build.py --output build/image [--reference YOUR-REGISTRY/dra-driver:0.1.0]

In: Debian's Python as .deb files (names, versions and hashes in debian.lock), the wheels of requirements.lock that the
package needs, the package itself. Out: `rootfs/`, `image.tar` (OCI layout), `digest` (of the tree's content) and
`sbom.json` (CycloneDX). The same inputs give the same bytes. The image contains no shell, package manager or compiler.
Run it with the Python of the project's virtual environment, on a Debian of debian.lock's suite (apt-get, dpkg-deb).
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib.metadata
import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import oci
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LOCK = HERE / "debian.lock"
APP = "usr/lib/dra-driver"
PACKAGES = (
    "libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal libpython3.11-stdlib"
    " libsqlite3-0 libssl3 libstdc++6 libuuid1 python3.11-minimal zlib1g"
).split()
# What no process in the image reads. Most of it is the models and calls of the Kubernetes client, of which the driver
# uses only the reading of kubeconfigs; a test imports everything that the driver imports from the finished tree.
UNUSED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/lintian",
    "usr/share/applications",
    "usr/share/binfmts",
    "usr/share/python3",
    "usr/share/locale",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/sbin",
    "usr/share/debhelper",
    "usr/lib/python3.11/test",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/distutils",
    "usr/lib/python3.11/ensurepip",
    "usr/share/libc-bin",
    "usr/share/gcc",
    "usr/share/gdb",
    "etc/ld.so.conf.d",
    "var",
    "etc/python3.11",
    f"{APP}/kubernetes/client/models",
    f"{APP}/kubernetes/client/api",
    f"{APP}/kubernetes/docs",
    f"{APP}/kubernetes/test",
    f"{APP}/kubernetes/e2e_test",
    f"{APP}/kubernetes/aio",
    f"{APP}/bin",
)
# Wheels that only the asyncio half of the Kubernetes client needs.
ASYNC = {"aiohappyeyeballs", "aiohttp", "aiohttp-retry", "aiosignal", "frozenlist", "multidict", "propcache", "yarl"}
PROGRAM = """#!/usr/bin/python3.11
import sys

from dra_driver.__main__ import main

sys.exit(main())
"""
PASSWD = "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/:/nonexistent\n"


def main() -> int:
    """Build everything; print its path, size and digest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "image")
    parser.add_argument(
        "--reference", default="", help="name of the image in the archive (default localhost/dra-driver:VERSION)"
    )
    parser.add_argument("--relock", action="store_true", help="take Debian's newest packages and write debian.lock")
    options = parser.parse_args()
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        sys.exit("the image has Debian's Python 3.11 for amd64, and its wheels: build it with a Python 3.11 on amd64")
    version = importlib.metadata.version("dra-driver")
    tree = options.output / "rootfs"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    debs = _fetch(options.output / "debs", relock=options.relock)
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb["file"], tree], check=True)
    wheels = _install_wheels(tree / APP, options.output)
    _install_driver(tree)
    _finish(tree)
    digest = oci.tree_digest(tree)
    reference = options.reference or f"localhost/dra-driver:{version}"
    manifest = oci.write(options.output / "image.tar", tree, reference, _configuration(version))
    (options.output / "digest").write_text(digest + "\n")
    (options.output / "sbom.json").write_text(json.dumps(_sbom(version, digest, debs, wheels), indent=1) + "\n")
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    packed = (options.output / "image.tar").stat().st_size
    print(
        f"{reference}: tree {size / 1e6:.1f} MB, archive {packed / 1e6:.1f} MB\ntree     {digest}\nmanifest {manifest}"
    )
    return 0


def _fetch(folder: Path, *, relock: bool) -> list[dict[str, str]]:
    """Download the packages of the lock, and check them against its hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    locked = {} if relock else {line.split()[0]: line.split()[1:] for line in LOCK.read_text().splitlines()}
    found = []
    for name in PACKAGES:
        wanted = f"{name}={locked[name][0]}" if locked else name
        before = {path.name for path in folder.glob(f"{name}_*.deb")}
        version = locked[name][0].replace(":", "%3a") if locked else ""
        if not any(f"_{version}_" in known for known in before) or relock:
            subprocess.run(["apt-get", "download", "-qq", wanted], cwd=folder, check=True, stderr=subprocess.DEVNULL)
        deb = next(path for path in sorted(folder.glob(f"{name}_*.deb")) if not version or f"_{version}_" in path.name)
        told = subprocess.run(
            ["dpkg-deb", "-f", deb, "Version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        if locked and digest != locked[name][1]:
            sys.exit(f"{deb}: sha256 {digest}, but debian.lock says {locked[name][1]}")
        found.append({"name": name, "version": told, "sha256": digest, "file": str(deb)})
    if relock:
        LOCK.write_text("".join(f"{deb['name']} {deb['version']} {deb['sha256']}\n" for deb in found))
    return found


def _needed() -> set[str]:
    """Return the name of every distribution that the package needs on Linux, itself excluded."""
    needed: set[str] = set()
    # The package's own requirements come from this checkout, because an editable install may be older.
    ahead: list[str] = []
    texts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    while texts or ahead:
        for text in texts or importlib.metadata.requires(ahead.pop()) or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name not in needed | ASYNC and (
                requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ):
                needed.add(name)
                ahead.append(name)
        texts = []
    return needed


def _install_wheels(target: Path, scratch: Path) -> list[dict[str, str]]:
    """Install the needed part of requirements.lock; return names and versions."""
    needed = _needed()
    blocks = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text())
    chosen = [block for block in blocks if canonicalize_name(re.split(r"[=\s;\[]", block, maxsplit=1)[0]) in needed]
    lock = scratch / "wheels.lock"
    lock.write_text("\n".join(chosen) + "\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--require-hashes", "--only-binary=:all:", "--no-compile", "--target", str(target), "-r", str(lock)]
    subprocess.run([*pip, *options], check=True)
    found = importlib.metadata.distributions(path=[str(target)])
    return sorted(({"name": d.metadata["Name"], "version": d.version} for d in found), key=lambda d: d["name"].lower())


def _install_driver(tree: Path) -> None:
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(REPOSITORY / "dra_driver", tree / APP / "dra_driver", ignore=unwanted)
    program = tree / "usr/bin/dra-driver"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text(PASSWD)
    (tree / "usr/bin/python3").symlink_to("python3.11")


def _finish(tree: Path) -> None:
    """Remove what is not used, compile what is, and remove everything that differs from build to build."""
    for name in UNUSED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for folder in ("usr/lib/python3.11", APP):
        compileall.compile_dir(
            tree / folder,
            quiet=2,
            stripdir=str(tree),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or (os.access(path, os.X_OK) and path.stat().st_mode & 0o111) else 0o644)
    for record in tree.glob(f"{APP}/*.dist-info/direct_url.json"):
        record.unlink()


def _configuration(version: str) -> dict[str, object]:
    """Return the image configuration, which is what the Dockerfile specifies."""
    return {
        "Env": ["PATH=/usr/bin", "PYTHONPATH=/usr/lib/dra-driver", "PYTHONDONTWRITEBYTECODE=1"],
        "User": "65532:65532",
        "Entrypoint": ["/usr/bin/dra-driver"],
        "Labels": {"org.opencontainers.image.title": "dra-driver", "org.opencontainers.image.version": version},
    }


def _sbom(version: str, digest: str, debs: list[dict[str, str]], wheels: list[dict[str, str]]) -> dict[str, object]:
    """Return the bill of materials. Source: CycloneDX 1.5."""
    parts: list[dict[str, object]] = [
        {
            "type": "library",
            "name": deb["name"],
            "version": deb["version"],
            "purl": f"pkg:deb/debian/{deb['name']}@{deb['version']}?arch=amd64",
            "hashes": [{"alg": "SHA-256", "content": deb["sha256"]}],
        }
        for deb in debs
    ]
    parts += [
        {
            "type": "library",
            "name": wheel["name"],
            "version": wheel["version"],
            "purl": f"pkg:pypi/{canonicalize_name(wheel['name'])}@{wheel['version']}",
        }
        for wheel in wheels
    ]
    subject = {
        "type": "container",
        "name": "dra-driver",
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": parts,
    }


if __name__ == "__main__":
    sys.exit(main())
