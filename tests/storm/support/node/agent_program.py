"""The program that forks the agents of a storm: each writes down which calls of the kubelet have begun and ended.

A kill is inside a call only if the call had begun and not ended, which nobody but the agent can know. Each line is one
write to a file, so a killed agent leaves whole lines. And a reset takes time, as that of a real GPU does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any

from dra_driver.hardware.simulated.state_file import Resets
from dra_driver.node.kubelet.server import PrepareCall, UnprepareCall
from tests.support.agents import warm_agents

JOURNAL = "STORM_JOURNAL"  # the variable with the path of the file
RESET_S = 1.0  # how long a reset takes; a real one takes some seconds


@cache
def _journal() -> int:
    return os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND)


def _note(text: str) -> None:
    """Write a line, unless the process has no descriptor left for the file."""
    with suppress(OSError):
        os.write(_journal(), text.encode())


def _noted(verb: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def noted(self: Any, claim: Any, deadline: Any) -> Any:
        _note(f"begun {verb} {claim.uid}\n")
        try:
            return work(self, claim, deadline)
        finally:
            _note(f"ended {verb} {claim.uid}\n")

    return noted


def _slow(reset: Callable[..., None]) -> Callable[..., None]:
    @wraps(reset)
    def slow(self: Any, *args: Any) -> None:
        time.sleep(RESET_S)
        reset(self, *args)

    return slow


def main() -> int:
    PrepareCall._work = _noted("Prepare", PrepareCall._work)  # type: ignore[method-assign]
    UnprepareCall._work = _noted("Unprepare", UnprepareCall._work)  # type: ignore[method-assign]
    Resets.reset = _slow(Resets.reset)  # type: ignore[method-assign]
    return warm_agents.main()


if __name__ == "__main__":
    sys.exit(main())
