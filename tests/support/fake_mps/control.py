"""The fake program: FakeMps puts real paths for the words in capitals."""

import importlib.util
import os
import sys
import time

spec = importlib.util.spec_from_file_location("mps_control", "SIMULATED")
control = importlib.util.module_from_spec(spec)
sys.modules["mps_control"] = control
spec.loader.exec_module(control)


class Faulty(control.Daemon):
    def before_start(self):
        self.meet("start")

    def before(self, command):
        self.meet(command.partition(" ")[0])

    def do(self, line):
        said = super().do(line)
        for where, what, *rest in self.faults():
            if (where, what) == (line.partition(" ")[0], "answer"):
                return " ".join(rest)
        return said

    def serve(self):
        self.meet("serve")
        super().serve()

    def faults(self):
        try:
            with open("FAULTS") as file:  # noqa: PTH123 - it starts often: pathlib costs more than all else
                return [line.strip().split(" ", 2) for line in file]
        except OSError:
            return []

    def meet(self, point):
        for where, what, *rest in self.faults():
            if where == point and what != "answer":
                self.suffer(point, what, " ".join(rest))

    def suffer(self, point, what, rest):
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
            raise control.Refused(rest)


sys.exit(control.main(Faulty))
