"""Questions whose page was left: the work on them ends with the connection."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from tests.support.console.process import RunningConsole, running_console
from tests.support.waiting import until

NINE = "[1,2,3,4,5,6,7,8,9]"
SLOW = "a + b + c + d + e + f + g > {number}"
for name in "gfedcba":
    SLOW = f"{NINE}.all({name}, {SLOW})"
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: slow-{number}}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: gpu.nvidia.com, selectors: [{{cel: {{expression: "{slow}"}}}}]}}
"""
MANY = "---".join(CLAIM.format(number=-number, slow=SLOW.format(number=-number)) for number in range(100))


def children_of(*parents: int) -> set[int]:
    """Return the processes that run and whose parent is one of these."""
    found = set()
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                state, parent = (one / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has ended meanwhile
                continue
            if int(parent) in parents and state != "Z":
                found.add(int(one.name))
    return found


def at_work(console: RunningConsole) -> set[int]:
    """Return the processes that work on questions."""
    return children_of(*children_of(console.process.pid))


def test_a_simulation_ends_when_the_connection_of_its_page_is_closed() -> None:
    with running_console("--fleet", "demo-h100") as console:
        console.ready()
        until(lambda: not at_work(console), "no question at work")
        line = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        headers = {"host": f"127.0.0.1:{console.port}", "cookie": console.cookie, "origin": console.origin}
        line.request("POST", "/api/v1/what-if", json.dumps({"objects": MANY}).encode(), headers)
        until(lambda: at_work(console), "the simulation at work")
        line.close()
        until(lambda: not at_work(console), "the end of the simulation", timeout_s=10.0)
        assert console.ask("summary").status == 200
