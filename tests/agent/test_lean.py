"""Lean imports, in a process of their own: what stays out, and that nobody is left with a stand-in."""

import json
import subprocess
import sys

_PROGRAM = """
import json, sys
from dra_driver.agent.lean import lean_imports
with lean_imports():
    import dra_driver.agent.node
kept_out = [n for n in ("grpc.aio", "importlib.metadata", "typing_extensions", "zipfile") if n in sys.modules]
import grpc.aio, importlib.metadata, pydantic, urllib3
with lean_imports():
    assert sys.modules["grpc.aio"] is grpc.aio, "what is there stays"
print(json.dumps([kept_out, grpc.aio.server.__module__, importlib.metadata.version("urllib3") == urllib3.__version__]))
"""


def test_the_agent_starts_without_what_it_never_uses_and_others_get_the_real_modules() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [[], "grpc.aio._server", True]
