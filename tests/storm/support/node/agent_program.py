"""The program that forks the agents of a storm: each writes down which calls of the kubelet have begun and ended.

A kill is inside a call only if the call had begun and not ended, which nobody but the agent can know. Each line is one
write to a file, so a killed agent leaves whole lines. And a reset takes time, as that of a real GPU does.

While a file says so, an agent sees no list of processes, or can open none of them; everything else it sees as usual.
Containers get the files of a driver root, which simulated hardware does not have.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any

from dra_driver.hardware.facts import Edits, merge
from dra_driver.hardware.nvidia.edits.edits import known_root_of
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.kernel import SimulatedNodes
from dra_driver.hardware.simulated.state_file import Resets
from dra_driver.node.kubelet.server import PrepareCall, UnprepareCall
from tests.support.agents import warm_agents

JOURNAL = "STORM_JOURNAL"  # the variable with the path of the file
BLINDNESS = "STORM_BLINDNESS"  # the variable with the path of the file, which says "LIST|PROCESS ERROR", or nothing
LIST, PROCESS = "list", "process"
_PLACES = {LIST: re.compile(r"/proc"), PROCESS: re.compile(r"/proc/(?!1$)\d+")}
DRIVER_ROOT = "STORM_DRIVER_ROOT"  # the variable with the path of the driver root
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


def _with_driver_files(common_edits: Callable[[SimulatedNodes], Edits], root: str) -> Callable[[SimulatedNodes], Edits]:
    """Return `common_edits` with the mounts of a driver root, as a real GPU's containers have them."""

    @wraps(common_edits)
    def with_files(self: SimulatedNodes) -> Edits:
        found = known_root_of(Roots(driver=root, driver_mount=root), None).edits
        return merge([common_edits(self), found])

    return with_files


def _blinded(work: Callable[..., Any], blindness: Path) -> Callable[..., Any]:
    """Make a function of `os` fail for paths that the agent may not see now."""

    @wraps(work)
    def looking(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        name = "" if isinstance(path, int) else os.fsdecode(path)
        if name.startswith("/proc") and (said := blindness.read_text().split()) and _PLACES[said[0]].fullmatch(name):
            number = getattr(errno, said[1])
            raise OSError(number, os.strerror(number), name)
        return work(path, *args, **kwargs)

    return looking


def main() -> int:
    PrepareCall._work = _noted("Prepare", PrepareCall._work)  # type: ignore[method-assign]
    UnprepareCall._work = _noted("Unprepare", UnprepareCall._work)  # type: ignore[method-assign]
    Resets.reset = _slow(Resets.reset)  # type: ignore[method-assign]
    nodes: Any = SimulatedNodes
    nodes.common_edits = _with_driver_files(SimulatedNodes.common_edits, os.environ[DRIVER_ROOT])
    if blindness := os.environ.get(BLINDNESS):
        for name in ("listdir", "open"):
            setattr(os, name, _blinded(getattr(os, name), Path(blindness)))
    return warm_agents.main()


if __name__ == "__main__":
    sys.exit(main())
