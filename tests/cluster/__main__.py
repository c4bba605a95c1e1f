"""The cluster lane by hand: `python -m tests.cluster binaries|up|down`."""

from __future__ import annotations

import argparse
import sys

from tests.cluster import binaries
from tests.cluster.cluster import REPOSITORY, Cluster


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("binaries", "build the components that are missing"),
        ("up", "start a cluster that stays, and print its KUBECONFIG"),
        ("down", "take down every cluster on this machine, those of killed test runs included"),
    ):
        command = commands.add_parser(name, help=text)
        if name != "down":
            command.add_argument("--k8s", default="1.35", choices=binaries.VERSIONS, help="Kubernetes version")
        if name == "up":
            command.add_argument("--nodes", type=int, default=1, help="number of nodes (default 1)")
            command.add_argument("--agent", metavar="PROFILE", help="run the driver on every node, over this hardware")
            command.add_argument("--default-gates", action="store_true", help="leave the feature gates alone")
    options = parser.parse_args()
    try:
        return int(globals()[f"_{options.command}"](options))
    except binaries.BinariesMissing as missing:
        print(missing, file=sys.stderr)
        return 5


def _binaries(options: argparse.Namespace) -> int:
    binaries.build(options.k8s)
    return 0


def _up(options: argparse.Namespace) -> int:
    cluster = Cluster(version=options.k8s, gates=not options.default_gates, nodes=options.nodes)
    try:
        cluster.start()
        if options.agent:
            _deploy(cluster, options.agent)
    except BaseException:
        cluster.keep_logs()
        cluster.stop()
        raise
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.programs['kubectl'].parent}:$PATH")
    return 0


def _deploy(cluster: Cluster, profile: str) -> None:
    from tests.cluster.agent import Agent

    cluster.apply(*(REPOSITORY / "deploy" / "manifests").glob("*.yaml"), *(REPOSITORY / "deviceclasses").glob("*.yaml"))
    for node in cluster.nodes:
        Agent(cluster, node, hardware=f"simulated:{profile}").start().published()


def _down(options: argparse.Namespace) -> int:
    for sandbox in Cluster.remains():
        sandbox.destroy()
        print(f"removed {sandbox.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
