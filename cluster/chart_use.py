"""What uses an installed chart: pods with GPUs, and an agent that runs out of memory."""

from __future__ import annotations

import subprocess

import pytest

from cluster import workload
from cluster.chart import NAMESPACE, Chart
from cluster.cluster import Cluster
from cluster.sandbox import until
from cluster.stage import Stage

POPULATION = {"whole": 5, "part": 8, "shared": 7}


def use_one_gpu(stage: Stage, *names: str, request: str = "gpu.nvidia.com") -> None:
    """Start pods that each use a separate device."""
    if not stage.cluster.api.find("ResourceClaimTemplate", request, "default"):
        stage.create(workload.template("default", request, workload.devices(workload.request("gpu", request))))
    for name in names:
        stage.create(workload.pod("default", name, workload.container("main", "gpu"), templates={"gpu": request}))


def check_running(stage: Stage, *names: str) -> None:
    """Check that pods run and were never restarted."""
    for name in names:
        assert all(s["restartCount"] == 0 for s in stage.running(name)["status"]["containerStatuses"])


def run_out_of_memory(chart: Chart) -> None:
    """Make another process in the agent's container use up its memory, and wait until the killed agent runs again."""
    (pod,) = chart.pods()
    name = pod["metadata"]["name"]
    # The kernel's choice must not depend on the score that a sandbox lets a process set for itself.
    takes_all = "path.joinpath('oom_score_adj').write_text('1000')\nheld = [b'x' * 2**20 for _ in iter(int, 1)]"
    with pytest.raises(subprocess.SubprocessError):
        chart.in_agent(name, f"path = agent()\n{takes_all}")

    def killed() -> bool:
        (status,) = chart.cluster.api.get("Pod", name, NAMESPACE)["status"]["containerStatuses"]
        assert status["lastState"].get("terminated", {}).get("reason") == "OOMKilled", status["lastState"]
        assert status["ready"], status["state"]
        return True

    until("the agent killed and ready again", killed, 90)


def opens_character_devices(chart: Chart, pod: str) -> None:
    """Check that an agent's container can open device nodes, including ones that it makes itself."""
    place = "/var/lib/kubelet/plugins/test"
    # No driver has this number, so a process that may open the node gets ENXIO; the device cgroup of an unprivileged
    # container returns EPERM.
    unknown = "os.mknod(place + '-unknown', 0o600 | stat.S_IFCHR, os.makedev(240, 200))"
    code = f"""import errno, os, stat
place = {place!r}
os.mknod(place + '-null', 0o600 | stat.S_IFCHR, os.makedev(1, 3))
{unknown}
print(os.write(os.open(place + '-null', os.O_RDWR), b'x'), os.write(os.open('/dev/null', os.O_RDWR), b'x'))
try:
    os.open(place + '-unknown', os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])
os.unlink(place + '-null'), os.unlink(place + '-unknown')
"""
    path = ["exec", "-n", NAMESPACE, pod, "--", "/usr/bin/python3", "-c", code]
    assert chart.cluster.kubectl(*path).split() == ["1", "1", "ENXIO"]


def nothing_is_left(chart: Chart) -> None:
    """Check that an uninstalled driver left neither objects nor files."""

    def gone() -> bool:
        assert objects_left(chart.cluster) == []
        return True

    until("no object left", gone, 30)
    for node in chart.cluster.nodes:
        assert list(node.cdi.iterdir()) == []
        assert list(node.registry.iterdir()) == []
        assert sorted(path.relative_to(node.plugins).as_posix() for path in node.plugins.rglob("*")) == []
        until("the kubelet to drop the slices", lambda node=node: not chart.slices(node), 60)


def objects_left(cluster: Cluster) -> list[str]:
    kinds = "ds,job,pod,cm,secret,sa,svc,resourcequota,networkpolicy,role,rolebinding"
    kinds += ",clusterrole,clusterrolebinding,deviceclass"
    kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding"
    said = cluster.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=dra-driver", "-o", "name")
    return said.split()
