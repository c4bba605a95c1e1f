"""A node on which containers of deleted pods may still run."""

import shutil
from pathlib import Path

OLD, OTHER = "0f9f7b1c-0000-4000-8000-000000000001", "0f9f7b1c-0000-4000-8000-000000000002"

HOST = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
80 21 0:50 / {kubelet}/pods/{pod}/volumes/kubernetes.io~projected/token rw shared:40 - tmpfs tmpfs rw
81 21 8:1 {kubelet}/pods/{pod}/volumes/v {kubelet}/pods/{pod}/volume-subpaths/v/main/0 rw - ext4 /dev/sda1 rw
"""

CONTAINER = """\
900 850 0:90 / / rw,relatime - overlay overlay rw,lowerdir=/x
901 900 0:91 / /proc rw,nosuid - proc proc rw
902 900 8:1 {kubelet}/pods/{pod}/containers/main/8b1d /dev/termination-log rw - ext4 /dev/sda1 rw
903 900 8:1 {kubelet}/pods/{pod}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw
"""


class Machine:
    """Processes and the kubelet's pod folders below a rig's folder."""

    def __init__(self, root: Path) -> None:
        self.proc, self.pods = root / "proc", root / "pods"
        self.pods.mkdir()
        self.run(1, "host", HOST, OLD)

    def run(self, pid: int, namespace: str, mounts: str, pod: str) -> None:
        (self.proc / str(pid) / "ns").mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (self.proc / str(pid) / "mountinfo").write_text(mounts.format(kubelet="/var/lib/kubelet", pod=pod))
        (self.pods / pod).mkdir(exist_ok=True)

    def begin_to_end(self, pid: int, state: str = "D", cgroup: str = "/") -> None:
        """Leave of a process what the kernel shows while it ends: neither mounts nor open files.

        At no moment does it look as if it had ended: somebody may be looking.
        """
        process = self.proc / str(pid)
        stat = f"{pid} (a ) b) {state} 1 {pid} {pid} 0 -1 {0x40054C} 0 0\n"
        for name, text in (("cgroup", f"0::{cgroup}\n"), ("stat", stat)):
            (process / f"{name}.new").write_text(text)
            (process / f"{name}.new").replace(process / name)
        for path in process.iterdir():
            if path.name == "fd":
                for link in path.iterdir():
                    link.unlink()
            elif path.name not in {"cgroup", "stat"}:
                path.unlink() if not path.is_dir() or path.is_symlink() else shutil.rmtree(path)
        (process / "fd").mkdir(exist_ok=True)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
