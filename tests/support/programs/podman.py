"""A real consumer of CDI files: podman and runc start a container with devices and report what arrived.

Everything lies in a folder of the test's own: the image (busybox alone, imported from a tar), the storage, and /run,
which is a tmpfs in a mount namespace of its own with the CDI folder bound to /run/cdi. Nothing on the machine changes.
podman 4.3 resolves documents up to CDI 0.5.0; newer ones are "unresolvable".
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

IMAGE = "localhost/busybox:test"
_APPLETS = ("sh", "cat", "env", "find", "ls", "mount", "readlink", "stat", "id", "test")
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


def misfit_reason() -> str:
    """Return why no container can be started here; empty when one can."""
    missing = [name for name in ("podman", "runc", "busybox", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if os.geteuid():
        return "starting containers with device nodes needs root"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this machine allows no mount namespaces"
    return ""


@dataclass
class Podman:
    """One podman with storage, image and CDI folder below `folder`.

    `files` go into the image, by container path, and `links` with their targets.
    """

    folder: Path
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if reason := misfit_reason():
            pytest.skip(reason)
        self.cdi.mkdir(parents=True)
        done = self._podman("import", "-", IMAGE, stdin=_root_file_system(self.files, self.links))
        assert done.returncode == 0, done.stderr

    @property
    def cdi(self) -> Path:
        """Return the CDI folder."""
        return self.folder / "cdi"

    def run(self, device_ids: list[str], script: str, user: str = "0:0") -> subprocess.CompletedProcess[str]:
        """Run a shell script in a container with CDI devices, as a user and group by number."""
        devices = [word for device_id in device_ids for word in ("--device", device_id)]
        how = ("--rm", "--network", "none", "--user", user, *_LIMITS, *devices)
        return self._podman("run", *how, IMAGE, "sh", "-c", script)

    def _podman(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        storage = ("--root", f"{self.folder}/store", "--runroot", "/run/podman", "--storage-driver", "vfs")
        runtime = ("--tmpdir", "/run/libpod", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
        command = shlex.join(["podman", *storage, *runtime, *arguments])
        cdi = shlex.quote(str(self.cdi))
        script = f"mount -t tmpfs tmpfs /run && mkdir /run/cdi && mount --bind {cdi} /run/cdi && exec {command}"
        isolated = ["unshare", "--mount", "sh", "-c", script]
        done = subprocess.run(isolated, input=stdin, capture_output=True, timeout=120, check=False)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def _root_file_system(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    """Return a tar with a static busybox, links for the programs that tests use, and more files and links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(shutil.which("busybox") or "busybox", "bin/busybox")
        for path, target in {**{f"bin/{name}": "busybox" for name in _APPLETS}, **links}.items():
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name in ("dev", "proc", "sys", "tmp", "etc", "usr"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path, file in files.items():
            tar.add(file.resolve(), path.lstrip("/"))
    return buffer.getvalue()
