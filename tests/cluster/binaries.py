"""The real components of the cluster lane: pinned by Go modules, built once into a cache outside the tree.

In: the `go.mod` files under `modules/`. Out: a folder of binaries for each module, named by module and version.
Never: a download of a ready-made binary, or a file in the tree. What Debian packages well (runc, the CNI plugins,
busybox) is taken from the machine, and asked for by name when it is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
VERSIONS = ("1.35", "1.36")
DEBIAN = {
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}


class BinariesMissing(Exception):
    """A component is not built, or a tool of the machine is not installed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Go module of `modules/` and what it builds."""

    folder: str
    module: str
    binaries: tuple[str, ...]
    stamps: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Return the pinned version, without the leading `v`."""
        text = (MODULES / self.folder / "go.mod").read_text()
        found = re.search(rf"^(?:require )?\s*{re.escape(self.module)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise BinariesMissing(f"modules/{self.folder}/go.mod: no version of {self.module}")
        return found.group(1)

    @property
    def path(self) -> Path:
        """Return the folder that holds (or will hold) the binaries."""
        return cache() / f"{self.folder}-{self.version}"

    @property
    def fingerprint(self) -> str:
        """Return what a build depends on: another pin anywhere in the module builds anew."""
        files = [MODULES / self.folder / name for name in ("go.mod", "go.sum")]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def built(self) -> bool:
        """Tell whether every binary is there, of the pinned modules."""
        stamp = self.path / "fingerprint"
        whole = all((self.path / name).exists() for name in self.binaries)
        return whole and stamp.exists() and stamp.read_text() == self.fingerprint

    def ldflags(self) -> str:
        """Return linker flags that strip the binary and stamp the version in."""
        major, minor, *_ = self.version.split(".")
        values = {"version": self.version, "major": major, "minor": minor}
        return " ".join(["-s", "-w", *(f"-X {stamp.format(**values)}" for stamp in self.stamps)])


def kubernetes(version: str) -> Part:
    """Return the Kubernetes components of a minor version (`1.35`).

    Without the stamps the API server calls itself v0.0.0-master and refuses to emulate feature gates.
    """
    if version not in VERSIONS:
        raise BinariesMissing(f"Kubernetes {version} is not pinned: one of {', '.join(VERSIONS)}")
    stamps = tuple(
        f"{package}.{field}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for field in ("gitVersion=v{version}", "gitMajor={major}", "gitMinor={minor}")
    )
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
    return Part(f"kubernetes-{version}", "k8s.io/kubernetes", names, stamps)


ETCD = Part("etcd", "go.etcd.io/etcd/server/v3", ("etcd",))
CONTAINERD = Part(
    "containerd",
    "github.com/containerd/containerd/v2",
    ("containerd", "containerd-shim-runc-v2", "ctr"),
    ("github.com/containerd/containerd/v2/version.Version={version}",),
)
HELM = Part("helm", "helm.sh/helm/v3", ("helm",), ("helm.sh/helm/v3/internal/version.version=v{version}",))


def cache() -> Path:
    """Return the folder of all builds: `DRA_CLUSTER_CACHE`, else one below the user's cache."""
    own = os.environ.get("DRA_CLUSTER_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver-cluster"


def require(version: str) -> dict[str, Path]:
    """Return the path of every program the cluster starts, by name.

    Raises: BinariesMissing when one is not there, saying what to run.
    """
    paths: dict[str, Path] = {}
    for part in (kubernetes(version), ETCD, CONTAINERD):
        if not part.built():
            raise BinariesMissing(
                f"{part.folder} {part.version} is not built: run `make cluster-binaries K8S={version}`"
            )
        paths |= {name: part.path / name for name in part.binaries}
    for program, package in DEBIAN.items():
        found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if found is None:
            raise BinariesMissing(f"{program} is missing: apt-get install {package}")
        paths[Path(program).name] = Path(found)
    return paths


def helm() -> Path:
    """Return helm, which only the chart's tests need.

    Raises: BinariesMissing when it is not built.
    """
    if not HELM.built():
        raise BinariesMissing(f"helm {HELM.version} is not built: run `make cluster-binaries`")
    return HELM.path / "helm"


def build(version: str) -> None:
    """Build what is missing for a Kubernetes version, with progress on stderr."""
    for part in (ETCD, CONTAINERD, HELM, kubernetes(version)):
        with _alone():
            if part.built():
                _say(f"{part.folder} {part.version}: ready in {part.path}")
            else:
                _build(part)


def _build(part: Part) -> None:
    if shutil.which("go") is None:
        raise BinariesMissing("the cluster lane builds its components with Go, and there is no `go` on PATH")
    fresh = part.path.with_name(part.path.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    # One package is named by the output file, several by the folder.
    output = str(fresh / part.binaries[0]) if len(part.binaries) == 1 else f"{fresh}/"
    command = ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", part.ldflags(), "-o", output, "tool"]
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=MODULES / part.folder, env=environment, stderr=subprocess.PIPE, stdout=sys.stderr, text=True
    )
    tail = _progress(part, process, started)
    if process.wait() != 0:
        raise BinariesMissing(f"go build of {part.folder} {part.version} failed:\n" + "\n".join(tail))
    (fresh / "fingerprint").write_text(part.fingerprint)
    shutil.rmtree(part.path, ignore_errors=True)
    fresh.rename(part.path)
    _say(f"{part.folder} {part.version}: built in {time.monotonic() - started:.0f} s")


def _progress(part: Part, process: subprocess.Popen[str], started: float) -> list[str]:
    """Count the packages that `go build -v` names, one line of progress every few seconds; return its last lines."""
    tail: list[str] = []
    compiled, told = 0, 0.0
    _say(f"{part.folder} {part.version}: go build of {', '.join(part.binaries)}")
    for line in process.stderr or ():
        tail = [*tail[-20:], line.rstrip()]
        compiled += not line.startswith("go: ")
        if time.monotonic() - told > 5:
            told = time.monotonic()
            _say(f"{part.folder} {part.version}: {compiled} packages compiled, {told - started:.0f} s ({line.strip()})")
    return tail


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the cache's lock: two builders take turns, the second finds the work done."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
