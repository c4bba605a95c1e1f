"""The cluster lane by hand: `python -m cluster binaries|floor|prometheus|helm|obstacle|up|down`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cluster.cluster import REPOSITORY, Cluster
from cluster.components import building, obstacle, parts


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("binaries", "build the components that are missing"),
        ("floor", "build the Go plugin that the benchmarks measure the driver beside"),
        ("prometheus", "build Prometheus and promtool, which judge rules and dashboards"),
        ("helm", "print the path of the helm that `binaries` has built, if it has"),
        ("obstacle", "say why no cluster can run on this machine, if so"),
        ("up", "start a cluster that stays, and print its KUBECONFIG"),
        ("down", "take down the clusters of `up` and of killed test runs, or those named"),
    ):
        command = commands.add_parser(name, help=text)
        if name in {"binaries", "up"}:
            command.add_argument("--k8s", default="1.35", choices=parts.VERSIONS, help="Kubernetes version")
        if name == "down":
            command.add_argument("folders", nargs="*", type=Path, help="these and no others (/tmp/dra-…)")
        if name == "up":
            command.add_argument("--nodes", type=int, default=1, help="number of nodes (default 1)")
            command.add_argument("--agent", metavar="PROFILE", help="run the driver on every node, over this hardware")
            command.add_argument("--default-gates", action="store_true", help="leave the feature gates alone")
    options = parser.parse_args()
    try:
        return int(globals()[f"_{options.command}"](options))
    except parts.BinariesMissing as missing:
        print(missing, file=sys.stderr)
        return 5
    except building.BuildFailed as failed:
        print(failed, file=sys.stderr)
        return 1


def _binaries(options: argparse.Namespace) -> int:
    building.build(options.k8s)
    return 0


def _floor(_: argparse.Namespace) -> int:
    building.build_one(parts.FLOOR)
    return 0


def _prometheus(_: argparse.Namespace) -> int:
    building.build_one(parts.PROMETHEUS)
    return 0


def _helm(_: argparse.Namespace) -> int:
    print(parts.HELM.path / "helm" if parts.HELM.built() else "")
    return 0


def _obstacle(options: argparse.Namespace) -> int:
    why = obstacle.obstacle()
    print(why, end="\n" if why else "")
    return 5 if why else 0


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
    # Only what a shell evaluates goes to stdout: eval "$(… up)".
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.programs['kubectl'].parent}:$PATH")
    print(f"to take it down: python -m cluster down {cluster.sandbox.root}", file=sys.stderr)
    return 0


def _deploy(cluster: Cluster, profile: str) -> None:
    from cluster.agent import Agent

    cluster.apply(*(REPOSITORY / "deploy" / "manifests").glob("*.yaml"), *(REPOSITORY / "deviceclasses").glob("*.yaml"))
    for node in cluster.nodes:
        Agent(cluster, node, hardware=f"simulated:{profile}").start().published()


def _down(options: argparse.Namespace) -> int:
    known = Cluster.remains()
    # A test run that is still going on takes down its own clusters.
    chosen = [one for one in known if not Cluster.is_owned(one) or Cluster.is_orphan(one)]
    if options.folders:
        chosen = [one for one in known if one.root in options.folders]
        for folder in set(options.folders) - {one.root for one in chosen}:
            print(f"{folder}: no cluster is there", file=sys.stderr)
            return 5
    for sandbox in chosen:
        sandbox.destroy()
        print(f"removed {sandbox.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
