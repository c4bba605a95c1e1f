"""`python traced.py OUT COMMAND ...`: a command of the driver, and which files of the package its walks pass.

Out, as JSON in OUT when the command ends, the files of each walk in the order in which they were entered:

    slices   below the scan and the publishing, until the first slices are written
    claim    below NodePrepareResources and NodeUnprepareResources
    explain  below the command line
    all      every file that was executed, those that were imported included

A file is passed if a function of it runs, also while a module is imported on the walk. Comprehensions don't count: from
Python 3.12 on those of a module run without a call.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import dra_driver

PACKAGE = f"{Path(dra_driver.__file__).parent}/"
# Where each walk begins: file and function.
BEGINS = {
    ("node/slices/scanner.py", "Scanner._turn"): "slices",
    ("node/slices/publisher.py", "Publisher._run"): "slices",
    ("node/kubelet/server.py", "PrepareCall.__call__"): "claim",
    ("node/kubelet/server.py", "UnprepareCall.__call__"): "claim",
    ("tools/main.py", "run"): "explain",
}
WRITTEN = ("node/slices/pool_sync.py", "PoolSync.run")  # returns when the slices are written
WALKS = ("slices", "claim", "explain")

entered: dict[str, dict[str, None]] = {walk: {} for walk in WALKS}
ended: set[str] = set()


def place_of(code: CodeType) -> tuple[str, str]:
    """Return file and name of a function of the package."""
    return code.co_filename.removeprefix(PACKAGE), code.co_qualname


def profile(frame: FrameType, event: str, result: object) -> None:
    """Keep the file of a function of the package that is called on a walk."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE):
        return
    if event == "return" and place_of(code) == WRITTEN and result:
        ended.add("slices")
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.endswith(("comp>", "expr>"))
    if event != "call" or not is_function:
        return
    for walk in walks_of(frame) - ended:
        entered[walk].setdefault(place_of(code)[0])


def walks_of(frame: FrameType | None) -> set[str]:
    """Return the walks that a function is called on: those that it or one of its callers begins."""
    walks = set()
    while frame is not None:
        if walk := BEGINS.get(place_of(frame.f_code)):
            walks.add(walk)
        frame = frame.f_back
    return walks


def executed() -> list[str]:
    """Return all files of the package that were executed, generated ones included."""
    paths = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return sorted(path.removeprefix(PACKAGE) for path in paths if path.startswith(PACKAGE))


def write(out: Path) -> None:
    """Write what was traced."""
    sys.setprofile(None)
    threading.setprofile(None)
    out.write_text(json.dumps({**{walk: [*files] for walk, files in entered.items()}, "all": executed()}))


def main() -> None:
    out, sys.argv = Path(sys.argv[1]), ["dra-driver", *sys.argv[2:]]
    end = os._exit

    def write_and_end(status: int) -> None:  # an agent ends without waiting for threads that hang
        write(out)
        end(status)

    os._exit = write_and_end
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        runpy.run_module("dra_driver", run_name="__main__")
    finally:
        write(out)


if __name__ == "__main__":
    main()
