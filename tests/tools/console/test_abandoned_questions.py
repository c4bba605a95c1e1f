"""Questions whose page was left: the work on them ends with the connection."""

from __future__ import annotations

import http.client
import json

from tests.support.console.process import RunningConsole, running_console
from tests.support.waiting import until
from tests.tools.console.support.slow_claims import CLAIM, SLOW, children_of

MANY = "---".join(CLAIM.format(number=-number, slow=SLOW.format(number=-number)) for number in range(100))


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
