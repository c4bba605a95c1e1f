"""One node: a kubelet and a containerd of its own, in a mount namespace of its own.

In: the sandbox, program paths, an index. Out: a node that can be booted, restarted, rebooted, and inspected. The mount
namespace makes the fixed paths (`/var/lib/kubelet/device-plugins`, `/run/containerd`, `/var/log/containers`, the boot
id) private: nothing of them is left on the machine, and two nodes do not interfere. No path is longer than a unix
socket's name may be.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster import image
from cluster.daemon import Daemon
from cluster.sandbox import Sandbox, hierarchies, remove_cgroups, until

BRIDGE = "cni0"
RUNTIME_SOCKET = "/run/containerd/containerd.sock"

MOUNTS = """
mount --make-rshared /
mkdir -p {base}/private && mount -t tmpfs private {base}/private
for folder in lib log; do
  mkdir -p {base}/private/$folder {base}/private/$folder.work
  mount -t overlay -o lowerdir=/var/$folder,upperdir={base}/private/$folder,workdir={base}/private/$folder.work \
    private /var/$folder
done
mount -t tmpfs -o mode=755 private /run
mount --bind {base}/boot_id /proc/sys/kernel/random/boot_id
touch {base}/mounted
exec sleep infinity
"""

CONTAINERD = """version = 3
root = "{base}/c"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{base}/net"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


class Node:
    """A node of the cluster. The node with index 1 has the bridge's first address, which pods use as their gateway."""

    def __init__(
        self, sandbox: Sandbox, programs: Mapping[str, Path], index: int, *, gates: tuple[str, ...], resync: str
    ) -> None:
        self.sandbox = sandbox
        self.programs = programs
        self.index = index
        self.gates = gates
        self.resync = resync
        self.name = f"node-{index}"
        self.address = f"10.88.0.{index}"
        self.group = f"n{index}"
        self.base = sandbox.root / self.group
        self.kubelet_root = self.base / "k"
        self.cdi = self.base / "cdi"
        self._holder: Daemon | None = None
        self.containerd: Daemon
        self.kubelet: Daemon

    @property
    def registry(self) -> Path:
        """Return the folder where the kubelet looks for registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """Return the folder of the plugins' own data."""
        return self.kubelet_root / "plugins"

    @property
    def mounts(self) -> Path:
        """Return the node's mount namespace."""
        assert self._holder is not None, f"{self.name} is not up"
        return Path(f"/proc/{self._holder.pid}/ns/mnt")

    def start(self) -> None:
        """Boot the node: namespace, containerd with its images, kubelet."""
        self.start_runtime()
        self.start_kubelet()

    def start_runtime(self) -> None:
        """Start everything on the node except the kubelet; this needs no API server."""
        for folder in (self.base, self.cdi, self.base / "net", self.registry, self.plugins):
            folder.mkdir(parents=True, exist_ok=True)
        self.sandbox.group(self.group)
        for hierarchy in hierarchies():
            self.sandbox.cgroup(hierarchy / self.sandbox.name / self.group)
        (self.base / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._enter_mounts()
        self._write_configuration()
        self.containerd = self.daemon("containerd", [self.programs["containerd"], "-c", self.base / "containerd.toml"])
        # containerd looks for its shim on PATH.
        self.containerd.environment["PATH"] = f"{self.programs['containerd'].parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.containerd.start()
        socket = Path(f"/proc/{self._holder_pid()}/root{RUNTIME_SOCKET}")
        self.containerd.until("serves", socket.exists, 30)
        self._import_images()

    def start_kubelet(self) -> None:
        """Start the kubelet."""
        argv = [
            self.programs["kubelet"],
            f"--config={self.base / 'kubelet.json'}",
            f"--kubeconfig={self.sandbox.root / 'pki' / f'{self.name}.kubeconfig'}",
            f"--root-dir={self.kubelet_root}",
            f"--cert-dir={self.base / 'cert'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--v=2",
        ]
        self.kubelet = self.daemon("kubelet", argv)
        self.kubelet.start()

    def reboot(self) -> None:
        """Remove what a reboot removes: every process, mount and cgroup, /run, the CDI folder, the boot id."""
        self.sandbox.kill(self.group)
        for process in (self.kubelet, self.containerd, self._holder):
            if process is not None:
                process.wait(10)
        for path in (self.base / "mounted", *self.cdi.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for hierarchy in hierarchies():
            remove_cgroups(hierarchy / self.sandbox.name / self.group / "kubepods")
        self.start()

    def daemon(self, name: str, argv: list[Any], **options: Any) -> Daemon:
        """Return a program that runs on this node."""
        return Daemon(
            self.sandbox,
            f"{self.name}-{name}",
            [str(word) for word in argv],
            mount=self.mounts,
            group=self.group,
            **options,
        )

    def run(self, *argv: str, timeout: float = 60) -> str:
        """Run a command on this node and return its output."""
        return self.sandbox.run(*argv, mount=self.mounts, group=self.group, timeout=timeout)

    def mount_points(self) -> set[str]:
        """Return every mount point of this node."""
        lines = Path(f"/proc/{self._holder_pid()}/mountinfo").read_text().splitlines()
        return {line.split()[4] for line in lines}

    def ctr(self, *arguments: str) -> str:
        """Run containerd's `ctr` and return its output."""
        return self.run(str(self.programs["ctr"]), "-a", RUNTIME_SOCKET, "-n", "k8s.io", *arguments)

    def _holder_pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    def _enter_mounts(self) -> None:
        script = MOUNTS.format(base=self.base)
        self._holder = Daemon(
            self.sandbox,
            f"{self.name}-mounts",
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
            group=self.group,
        )
        self._holder.start()
        self._holder.until("mounted", (self.base / "mounted").exists, 10)

    def _write_configuration(self) -> None:
        (self.base / "containerd.toml").write_text(
            CONTAINERD.format(
                base=self.base,
                cdi=self.cdi,
                pause=image.PAUSE,
                runc=self.programs["runc"],
                cni=self.programs["bridge"].parent,
            )
        )
        (self.base / "net" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        (self.base / "kubelet.json").write_text(json.dumps(self._kubelet_configuration(), indent=1))

    def _network(self) -> dict[str, Any]:
        addresses = {
            "subnet": "10.88.0.0/16",
            "rangeStart": f"10.88.{self.index}.10",
            "rangeEnd": f"10.88.{self.index}.250",
            "gateway": "10.88.0.1",
        }
        ipam = {
            "type": "host-local",
            "dataDir": str(self.base / "ipam"),
            "ranges": [[addresses]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {
            "cniVersion": "1.0.0",
            "name": "cluster",
            "plugins": [{"type": "bridge", "bridge": BRIDGE, "isGateway": False, "ipMasq": False, "ipam": ipam}],
        }

    def _kubelet_configuration(self) -> dict[str, Any]:
        pki = self.sandbox.root / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.sandbox.name}/{self.group}",
            "enforceNodeAllocatable": ["none"],
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10248 + 10 * self.index,
            "tlsCertFile": str(pki / f"{self.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{self.name}.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
            "podLogsDir": str(self.base / "pods"),
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": self.resync,
            "featureGates": dict.fromkeys(self.gates, True),
        }

    def _import_images(self) -> None:
        known = until("containerd answers", lambda: "\n" + self.ctr("images", "ls", "-q"), 20)
        sleeping = ["/bin/sleep", "2147483647"]
        for reference in (image.PAUSE, image.BUSYBOX):
            if reference in known:
                continue
            archive = self.base / "image.tar"
            image.write(archive, reference, self.programs["busybox"], sleeping)
            self.ctr("images", "import", str(archive))
            archive.unlink()
