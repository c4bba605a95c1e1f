"""Contents of the image: Debian's packages, what is removed from them, what a container runs, and as which user.

This is the only description of the image. The OCI archive and the Dockerfile in the build folder are both made from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

SUITE = "bookworm"
REPOSITORY_NAME = "localhost/dra-driver"  # as the chart's values.yaml has it
APP = "usr/lib/dra-driver"
PACKAGES = (
    "base-files gcc-12-base libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal"
    " libpython3.11-stdlib libsqlite3-0 libssl3 libstdc++6 libuuid1 python3.11-minimal zlib1g"
).split()
# Of this package only what says which Debian it is, and the licenses that the copyright files of others refer to.
BASE = "base-files"
BASE_FILES = ("etc/os-release", "usr/lib/os-release", "usr/share/common-licenses", f"usr/share/doc/{BASE}")
# Files that no process in the image reads. Most of them are the models and calls of the Kubernetes client, of which the
# driver uses only the reading of kubeconfigs. A test imports everything that the driver imports from the finished tree.
UNUSED = (
    "usr/share/man",
    "usr/share/lintian",
    "usr/share/applications",
    "usr/share/binfmts",
    "usr/share/python3",
    "usr/share/locale",
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


@dataclass(frozen=True, slots=True)
class Architecture:
    """One processor architecture, with the names that Debian and OCI, Python and ELF use for it."""

    name: str  # the name used by Debian and OCI
    machine: str  # what Python's platform.machine() returns
    elf_machine: int  # e_machine in an ELF header
    elf_class: int  # 32 or 64 bits

    @property
    def triplet(self) -> str:
        """Return the folder name of Debian's libraries."""
        return f"{self.machine}-linux-gnu"

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the paths that are removed from the tree."""
        return (*UNUSED, f"usr/lib/{self.triplet}/gconv")


# e_machine: System V ABI, "ELF Header"; EM_X86_64 is 62, EM_AARCH64 is 183.
ARCHITECTURES = {
    "amd64": Architecture("amd64", "x86_64", 62, 64),
    "arm64": Architecture("arm64", "aarch64", 183, 64),
}


def configuration(version: str, labels: Mapping[str, str] | None = None) -> dict[str, object]:
    """Return the part of an OCI image configuration that says what a container runs; `labels` are further ones."""
    title = {"title": "dra-driver", "version": version, "licenses": "Apache-2.0"}
    return {
        "Env": ["PATH=/usr/bin", f"PYTHONPATH=/{APP}", "PYTHONDONTWRITEBYTECODE=1"],
        "User": "65532:65532",
        "Entrypoint": ["/usr/bin/dra-driver"],
        "Labels": {f"org.opencontainers.image.{name}": text for name, text in {**title, **(labels or {})}.items()},
    }


def dockerfile(settings: Mapping[str, object]) -> str:
    """Return a Dockerfile that makes the same image of an architecture's build folder."""
    labels = settings["Labels"]
    assert isinstance(labels, dict)  # noqa: S101
    lines = [
        "FROM scratch",
        "COPY rootfs/ /",
        f"ENV {' '.join(settings['Env'])}",  # type: ignore[arg-type]
        f"LABEL {' '.join(f'{name}={value}' for name, value in labels.items())}",
        f"USER {settings['User']}",
        f"ENTRYPOINT {json.dumps(settings['Entrypoint'])}",
    ]
    return "\n".join(lines) + "\n"
