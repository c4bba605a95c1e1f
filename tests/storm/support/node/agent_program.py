"""The program that forks the agents of a storm: each writes down which calls of the kubelet have begun and ended.

A kill is inside a call only if the call had begun and not ended, which nobody but the agent can know. Each line is one
write to a file, so a killed agent leaves whole lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any

from dra_driver.node.kubelet.server import PrepareCall, UnprepareCall
from tests.support.agents import warm_agents

JOURNAL = "STORM_JOURNAL"  # the variable with the path of the file


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


def main() -> int:
    PrepareCall._work = _noted("Prepare", PrepareCall._work)  # type: ignore[method-assign]
    UnprepareCall._work = _noted("Unprepare", UnprepareCall._work)  # type: ignore[method-assign]
    return warm_agents.main()


if __name__ == "__main__":
    sys.exit(main())
