"""A simulated control daemon with faults: it crashes, hangs, refuses or is slow where a file says so (see FakeMps)."""

from __future__ import annotations

import os
import sys
import time

from dra_driver.node.mps.simulated_daemon import Daemon, Refused


class FaultyDaemon(Daemon):
    """The daemon whose faults are listed in the file `FAULTS`, one in a line: where, what, and further words."""

    FAULTS = ""

    def before_start(self) -> None:
        self.fail_at("start")

    def before(self, command: str) -> None:
        self.fail_at(command.partition(" ")[0])

    def do(self, line: str) -> str:
        answer = super().do(line)
        for where, what, *rest in self.faults():
            if (where, what) == (line.partition(" ")[0], "answer"):
                return " ".join(rest)
        return answer

    def serve(self) -> None:
        self.fail_at("serve")
        super().serve()

    def faults(self) -> list[list[str]]:
        try:
            with open(self.FAULTS) as file:  # noqa: PTH123 - pathlib costs more than all else, and this starts often
                return [line.strip().split(" ", 2) for line in file]
        except OSError:
            return []

    def fail_at(self, point: str) -> None:
        for where, what, *rest in self.faults():
            if where == point and what != "answer":
                self.fail(point, what, " ".join(rest))

    def fail(self, point: str, what: str, rest: str) -> None:
        if what == "crash":
            os._exit(9)
        elif what == "hang":
            time.sleep(600)
        elif what == "slow":
            time.sleep(float(rest))
        elif point == "start":
            os.write(1, rest.encode() + b"\n")
            sys.exit(1)
        else:
            raise Refused(rest)
