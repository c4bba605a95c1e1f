"""Real processes that stand for containers of pods."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest


class Container:
    """A real process in a mount namespace of its own, which sees the kubelet's folder of a pod as a container does.

    Its /dev is its own, with `nodes` by path; `program` is a line for the shell, `limits` what it may not do.
    """

    def __init__(
        self, root: Path, pod: str, nodes: dict[str, int], program: str = "", *, limits: str = "-sys_admin"
    ) -> None:
        hosts = root / "kubelet/pods" / pod / "etc-hosts"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text("127.0.0.1 localhost")
        lines = [f"mount --bind {hosts} /etc/hosts", "mount -t tmpfs dev /dev"]
        for path, number in nodes.items():
            lines += [f"mkdir -p {Path(path).parent}", f"mknod {path} c {os.major(number)} {os.minor(number)}"]
        inside = f"{program or ':'}; echo up; exec sleep 300"
        lines.append(f"exec setpriv --bounding-set {limits} sh -c {shlex.quote(inside)}")
        command = ["unshare", "--mount", "sh", "-c", " && ".join(lines)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "up\n":
            self.end()
            pytest.skip("needs root and the rights to mount and to make nodes")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
