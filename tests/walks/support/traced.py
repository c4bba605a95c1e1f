"""`python traced.py OUT COMMAND ...`: a command of the driver, and which files of the package its walks pass.

Out, as JSON in OUT when the command ends: "slices", "claim" and "explain", the files in which a function ran below the
scan and the publishing of slices, below a call of the kubelet, and below the command line, in the order in which they
were entered; "all", every file that was executed.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType

import dra_driver

PACKAGE = f"{Path(dra_driver.__file__).parent}/"
ROOTS = {
    "slices": f"{PACKAGE}node/slices/",
    "claim": (f"{PACKAGE}node/kubelet/methods.py", f"{PACKAGE}node/kubelet/server.py"),
    "explain": f"{PACKAGE}tools/main.py",
}

entered: dict[str, dict[str, None]] = {walk: {} for walk in ROOTS}


def profile(frame: FrameType, event: str, _: object) -> None:
    """Keep the file of a function of the package that is called below one of the roots."""
    file = frame.f_code.co_filename
    if event != "call" or not file.startswith(PACKAGE) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    below, caller = set(), frame
    while caller is not None:
        above = caller.f_code.co_filename
        if caller.f_code.co_name == "<module>" and above.startswith(PACKAGE) and not above.endswith("__main__.py"):
            return  # a module is being imported
        below |= {walk for walk, root in ROOTS.items() if above.startswith(root)}
        caller = caller.f_back
    for walk in below:
        entered[walk].setdefault(file.removeprefix(PACKAGE))


def executed() -> list[str]:
    """Return all files of the package that were executed, generated ones included."""
    paths = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return sorted(path.removeprefix(PACKAGE) for path in paths if path.startswith(PACKAGE))


def write(out: Path) -> None:
    """Write what was traced."""
    sys.setprofile(None)
    threading.setprofile(None)
    walks = {walk: [file for file in files if "_proto" not in file] for walk, files in entered.items()}
    out.write_text(json.dumps({**walks, "all": executed()}))


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
