"""Simulated kubelets that report pods and claims on PodResources sockets, all in one process.

`python -m benchmarks.pod_resources CLAIMS SOCKET...` answers on each socket with one pod that has the given number of
the large cluster's claims, all still being prepared, so only the API server knows their devices. It ends when standard
input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dra_driver.base.wire import Wire
from dra_driver.simulator.kubelet import EmbeddedPodResources


def main() -> None:
    """Serve until standard input ends."""
    pods = [(_POD, {"main": _claims(int(sys.argv[1]))})]
    kubelets = [EmbeddedPodResources(Path(path), pods=lambda: pods, allocatable=dict) for path in sys.argv[2:]]
    for kubelet in kubelets:
        kubelet.start()
    print("ready", flush=True)
    sys.stdin.read()
    for kubelet in kubelets:
        kubelet.stop()


_POD: Wire = {"metadata": {"name": "pod", "namespace": "crowd"}}


def _claims(count: int) -> list[Wire]:
    return [{"claimName": f"crowd-{n}", "claimNamespace": "crowd", "claimResources": []} for n in range(count)]


if __name__ == "__main__":
    main()
