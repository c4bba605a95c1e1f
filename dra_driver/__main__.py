"""The `dra-driver` command. Agent and MPS supervisor never import what the other commands need."""

from __future__ import annotations

import os
import sys


def main(program: str = "dra-driver") -> int:
    """Run the agent, the MPS supervisor, or any other command; return the process's exit status.

    `program` is what the other commands call themselves in usage lines.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else grpc writes lines of its own between our log's
    words = _as_options(sys.argv[1:])
    if words[:1] == ["agent"]:
        from dra_driver.node import daemon

        return daemon.main(words[1:])
    if words[:1] == ["mps"]:
        from dra_driver.node.mps import supervisor

        return supervisor.main(words[1:])
    from dra_driver.tools.main import run

    return run(words, program)


def _as_options(words: list[str]) -> list[str]:
    """Return a command line in which `help COMMAND` and `version` are the options that mean the same.

    >>> _as_options(["help", "cel", "test"]), _as_options(["version"])
    (['cel', 'test', '--help'], ['--version'])
    """
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    return ["--version"] if words == ["version"] else words


def kubectl_plugin() -> int:
    """Run as `kubectl-dra`, which kubectl starts for `kubectl dra`; return the process's exit status."""
    return main("kubectl dra")


if __name__ == "__main__":
    sys.exit(main())
