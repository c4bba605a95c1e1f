"""The test of a simulated device: it does what the profile says (`health.compute`), as a real one might."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from dra_driver.hardware.compute.report import COULD_NOT_RUN, FAILED, PASSED, say_step, say_verdict


def main(request: Mapping[str, Any]) -> None:
    """Play the test that was asked for."""
    compute = request["compute"]
    for step in ("init", "context"):
        say_step(step)
    if compute == "hangs":
        while True:
            time.sleep(60)
    if compute == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(float(request.get("seconds", 0)))
    if compute == "wrong-data":
        say_verdict(FAILED, "wrong-data", "memory read back differs from what was written (simulated)")
    elif compute == "not-ready":
        say_verdict(COULD_NOT_RUN, "not-ready", "cuInit returned 802 (simulated)")
    else:
        say_verdict(PASSED)
