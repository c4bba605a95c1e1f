"""Obstacle: why this machine can't run a cluster, if it can't."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from cluster.components.programs import DEBIAN, which
from cluster.sandbox import CGROUPS, hierarchies


def obstacle() -> str:
    """Return in one line why this machine can't run a cluster, whatever is built; empty if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    for program, package in DEBIAN.items():
        if which(program) is None:
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
