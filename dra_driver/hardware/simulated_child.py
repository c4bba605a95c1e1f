"""The test of a simulated device: it ends as `health.compute` of the profile states, like a real test that ends so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from dra_driver.hardware.cuda import COULD_NOT_RUN, FAILED, PASSED, report_step, report_verdict


def main(request: Mapping[str, Any]) -> None:
    """Simulate the test that the request describes."""
    compute = request["compute"]
    for step in ("init", "context"):
        report_step(step)
    if compute == "hangs":
        while True:
            time.sleep(60)
    if compute == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(float(request.get("seconds", 0)))
    if compute == "wrong-data":
        report_verdict(FAILED, "wrong-data", "memory read back differs from what was written (simulated)")
    elif compute == "not-ready":
        report_verdict(COULD_NOT_RUN, "not-ready", "cuInit returned 802 (simulated)")
    else:
        report_verdict(PASSED)
