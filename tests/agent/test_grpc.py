"""What the agent asks of gRPC by the environment, which is read before anything of it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

from dra_driver.__main__ import GRPC_EXPERIMENTS


def said_by_grpc(experiments: str) -> str:
    environment = os.environ | {"GRPC_VERBOSITY": "ERROR", "GRPC_EXPERIMENTS": experiments}
    program = [sys.executable, "-c", "import grpc; grpc.server(None)"]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=True).stderr


def test_the_locked_grpc_knows_the_listener_that_is_chosen():
    assert said_by_grpc(GRPC_EXPERIMENTS) == ""
    assert "no_such_listener" in said_by_grpc(f"{GRPC_EXPERIMENTS},-no_such_listener")
