"""Programs that tests run for as long as they make progress, however slow the machine is."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SILENT_S = 120.0
_ROOT = Path(__file__).parents[3]


def output_of(module: str, arguments: Sequence[str], *, silent_s: float = SILENT_S) -> str:
    """Return what a module's program prints. It writes to its standard error at least every `silent_s` seconds."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdout=output, stderr=subprocess.PIPE, cwd=_ROOT
        ) as process:
            assert process.stderr is not None
            last = b""
            while select.select([process.stderr], [], [], silent_s)[0]:
                if not (part := os.read(process.stderr.fileno(), 65536)):
                    break
                last = (last + part)[-2000:]
            else:
                process.kill()
                raise AssertionError(f"{module} {arguments} made no progress for {silent_s} s: {last.decode()}")
        assert process.returncode == 0, last.decode()
        output.seek(0)
        return output.read().decode()
