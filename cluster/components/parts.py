"""Parts: the components, each pinned by a Go module, and where its binaries are.

In: the `go.mod` files under `modules/`. Out: a folder of binaries for each module, named by module and version.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parents[1] / "modules"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")


class BinariesMissing(Exception):
    """A component is not built, or a tool of the machine is not installed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Go module of `modules/` and what it builds."""

    folder: str
    module: str
    binaries: tuple[str, ...]
    stamps: tuple[str, ...] = ()
    target: str = "tool"  # the argument of `go build`
    root: Path = MODULES

    @property
    def source(self) -> Path:
        """Return the folder of the module."""
        return self.root / self.folder

    @property
    def version(self) -> str:
        """Return the pinned version, without the leading `v`."""
        text = (self.source / "go.mod").read_text()
        found = re.search(rf"^(?:require )?\s*{re.escape(self.module)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise BinariesMissing(f"{self.source}/go.mod: no version of {self.module}")
        return found.group(1)

    @property
    def path(self) -> Path:
        """Return the folder that holds (or will hold) the binaries."""
        return cache() / f"{self.folder}-{self.version}"

    @property
    def fingerprint(self) -> str:
        """Return what a build depends on: any other pin in the module causes a new build."""
        files = [self.source / name for name in ("go.mod", "go.sum")]
        files += sorted(self.source.glob("*.go"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def built(self) -> bool:
        """Return whether every binary exists and was built from the pinned modules."""
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
FLOOR = Part(  # our own minimal driver, with which the benchmarks compare this one
    "floor", "k8s.io/dynamic-resource-allocation", ("floor",), target=".", root=MODULES.parent
)
# `helm template` and `helm lint` render for this Kubernetes unless they are told another; without it, for 1.20.
HELM_KUBERNETES = "1.34"
_HELM_PACKAGES = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
HELM = Part(
    "helm",
    "helm.sh/helm/v3",
    ("helm",),
    (
        "helm.sh/helm/v3/internal/version.version=v{version}",
        *(
            f"{package}.k8sVersion{field}={value}"
            for package in _HELM_PACKAGES
            for field, value in zip(("Major", "Minor"), HELM_KUBERNETES.split("."), strict=True)
        ),
    ),
)
PROMETHEUS = Part("prometheus", "github.com/prometheus/prometheus", ("prometheus", "promtool"))


def cache() -> Path:
    """Return the folder of all builds: `DRA_CLUSTER_CACHE`, else one below the user's cache."""
    own = os.environ.get("DRA_CLUSTER_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver-cluster"
