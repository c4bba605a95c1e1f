"""Lean imports, in a process of their own: what stays out, and that no module is left with a stand-in."""

import json
import subprocess
import sys

_PROGRAM = """
import json, sys
from dra_driver.model.deferred_imports import deferred_imports
with deferred_imports(has_tls=False):
    import prometheus_client
assert "ssl" not in sys.modules and "_ssl" not in sys.modules
with deferred_imports():
    import ssl
    assert ssl.SSLContext.__module__ == "ssl" and ssl.create_default_context(), "the real one for everybody else"
    import pynvml, dra_driver.agent.node, dra_driver.telemetry.metrics as metrics
import dra_driver.hardware.nvidia.hardware, dra_driver.hardware.simulated.hardware
from dra_driver.agent import main as agent
sys.modules[agent.__module__]._parse(["--node-name", "n"])
unused = ("asyncio", "google.protobuf.text_format", "grpc", "importlib.metadata", "typing_extensions", "zipfile")
unused += ("calendar", "tempfile", "subprocess", "decimal", "ipaddress", "locale", "shutil")
unused += ("ast", "inspect") if sys.version_info < (3, 12) else ()  # from 3.12 on, each dataclass needs them
unused += ("email", "http.server", "socketserver", "urllib.request", "wsgiref")
kept_out = [n for n in unused if n in sys.modules]
assert b"dra_driver_build_info" in metrics.Metrics(metrics.Snapshot).render()
import calendar, dataclasses, gettext, inspect, ipaddress, prometheus_client, urllib.parse

@dataclasses.dataclass
class WithoutDocstring:
    number: int

assert WithoutDocstring.__doc__ == "WithoutDocstring(number: int)"
assert dataclasses.inspect.signature is inspect.signature and urllib.parse.ipaddress.ip_address is ipaddress.ip_address
assert callable(gettext.translation) and calendar.timegm((1970, 1, 1, 0, 0, 0)) == 0
assert pynvml.find_library("c"), "found by the real function"
import ctypes.util
assert ctypes.util.find_library("c")
counter = prometheus_client.Counter("calls", "Calls.", registry=None)
assert counter.count_exceptions()(lambda: 5)() == 5, "prometheus_client's decorator"
import http.server, urllib.request, wsgiref.simple_server
assert issubclass(wsgiref.simple_server.WSGIServer, http.server.HTTPServer) and urllib.request.build_opener()
from google.protobuf import descriptor_pool
python_message = descriptor_pool.python_message
assert python_message.GeneratedProtocolMessageType.__module__ == python_message.__name__, "real at first use"
with deferred_imports():
    assert sys.modules["inspect"] is inspect, "what is there stays"
print(json.dumps(kept_out))
"""


def test_the_agent_starts_without_what_it_never_uses_and_others_get_the_real_modules() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == []
