"""Building: what is missing is built with Go, one component after the other. No file is written into the tree."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.components.compiler import go, report
from cluster.components.obstacle import obstacle
from cluster.components.parts import CONTAINERD, ETCD, HELM, BinariesMissing, Part, cache, kubernetes

# Measured: the binaries of one Kubernetes version and the rest; Go's own caches of modules and objects for them.
ROOM = 1 << 30
BUILD_ROOM = 4 << 30


class BuildFailed(Exception):
    """Go had everything that it needed, but could not build a component."""


# What Go prints when a module could not be fetched, as opposed to compiled.
UNREACHABLE = re.compile(r"reading http|dial tcp|proxyconnect|module lookup disabled|i/o timeout|no such host")


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
        report(f"{part.folder} {part.version}: ready in {part.path}")


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
        report(f"the components can be built here, but no cluster can run: {why}")
    compiler = go()
    names = ", ".join(f"{part.folder} {part.version}" for part in missing)
    report(f"{len(missing)} to build with {compiler}, one after the other: {names}")
    return compiler


def build_one(part: Part) -> None:
    """Build a component that no cluster needs, if it is not built. Raises: BinariesMissing, BuildFailed."""
    if not part.built():
        with _alone():
            if not part.built():
                _build(part, go())
    report(f"{part.folder} {part.version}: ready in {part.path}")


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
    report(f"{part.folder} {part.version}: built in {time.monotonic() - started:.0f} s")


def _progress(part: Part, process: subprocess.Popen[str], started: float) -> list[str]:
    """Count the packages that `go build -v` prints, with a line of progress every few seconds.

    Return its last lines.
    """
    tail: list[str] = []
    compiled, shown = 0, 0.0
    report(f"{part.folder} {part.version}: go build of {', '.join(part.binaries)}")
    for line in process.stderr or ():
        tail = [*tail[-20:], line.rstrip()]
        compiled += not line.startswith("go: ")
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            report(
                f"{part.folder} {part.version}: {compiled} packages compiled, {shown - started:.0f} s ({line.strip()})"
            )
    return tail


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the cache's lock: two builders take turns, and the second finds the work done."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
