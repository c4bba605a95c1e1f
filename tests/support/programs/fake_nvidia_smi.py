"""A stand-in for nvidia-smi below a driver root: it keeps the time slice of each GPU, and logs each call.

Understands `compute-policy -i UUID --set-timeslice N` and `compute-policy -i UUID -l`. Files beside it make it refuse,
hang, or print a given text. Touches no GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

_PROGRAM = """#!/bin/sh
here=$(dirname "$0")/../../fake-smi
printf '%s\\t' "$@" >> "$here/calls"; echo >> "$here/calls"
[ -n "$LD_PRELOAD" ] && echo "$LD_PRELOAD" >> "$here/preloaded"
[ -e "$here/hang" ] && exec sleep 60
if [ -e "$here/refusal" ]; then cat "$here/refusal"; exit "$(cat "$here/status")"; fi
if [ -e "$here/say" ]; then cat "$here/say"; exit 0; fi
[ "$1 $2" = "compute-policy -i" ] || { echo "unknown option $1"; exit 6; }
case "$4" in
  --set-timeslice) echo "$5" > "$here/slice-$3"; echo "Timeslice of GPU $3 was set" ;;
  -l) level=$(cat "$here/slice-$3" 2>/dev/null || echo 0)
      set -- Default Short Medium Long; shift "$level"; echo "|   Timeslice      $1 |" ;;
  *) echo "unknown option $4"; exit 6 ;;
esac
"""


class FakeNvidiaSmi:
    """The program below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "usr/bin/nvidia-smi"
        self._notes = root / "fake-smi"
        self.path.parent.mkdir(parents=True)
        self._notes.mkdir()
        self.path.write_text(_PROGRAM)
        self.path.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call so far."""
        log = self._notes / "calls"
        return [line.split("\t")[:-1] for line in log.read_text().splitlines()] if log.exists() else []

    def sets(self) -> list[tuple[str, int]]:
        """Return UUID and level of each change that was asked for."""
        return [(call[2], int(call[4])) for call in self.calls() if "--set-timeslice" in call]

    def level(self, uuid: str) -> int:
        """Return a GPU's level as it is now."""
        kept = self._notes / f"slice-{uuid}"
        return int(kept.read_text()) if kept.exists() else 0

    def preloaded(self) -> list[str]:
        return (self._notes / "preloaded").read_text().splitlines()

    def refuse(self, text: str, status: int) -> None:
        (self._notes / "refusal").write_text(text + "\n")
        (self._notes / "status").write_text(json.dumps(status))

    def say(self, text: str) -> None:
        (self._notes / "say").write_text(text + "\n")

    def hang(self) -> None:
        (self._notes / "hang").touch()
