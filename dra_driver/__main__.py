"""The `dra-driver` command. Agent and MPS supervisor never import what the other commands need."""

from __future__ import annotations

import os
import sys


def main(program: str = "dra-driver") -> int:
    """Run the agent, the MPS supervisor, or any other command; return the process's exit status.

    `program` is what the other commands call themselves in usage lines.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else grpc writes lines of its own between our log's
    if sys.argv[1:2] == ["agent"]:
        from dra_driver.node import daemon

        return daemon.main(sys.argv[2:])
    if sys.argv[1:2] == ["mps"]:
        from dra_driver.node.mps import supervisor

        return supervisor.main(sys.argv[2:])
    from dra_driver.tools.main import run

    return run(sys.argv[1:], program)


def kubectl_plugin() -> int:
    """Run as `kubectl-dra`, which kubectl starts for `kubectl dra`; return the process's exit status."""
    return main("kubectl dra")


if __name__ == "__main__":
    sys.exit(main())
