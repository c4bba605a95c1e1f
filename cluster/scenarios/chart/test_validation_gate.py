"""The chart's agent tests its devices, on the stand-ins for NVIDIA's libraries: what fails, and what takes too much."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cluster.chart import Chart
from cluster.machines.nvml_machine import NvmlMachine
from cluster.sandbox import until
from cluster.stage import Stage
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml.machines import gpu_uuid


def test_a_test_that_takes_a_gibibyte_ends_alone_and_what_failed_is_not_offered(
    chart: Chart, stage: Stage, tmp_path: Path
) -> None:
    greedy, wrong, good = 2, 3, 4  # GPUs of the machine
    machine = NvmlMachine(tmp_path, partitioned=())
    cuda = FakeCuda(machine.library.parent)
    gpus = machine.state.gpus
    for number, gpu in enumerate(gpus):
        cuda.set(gpu_uuid(gpu.pci), gpu.pci, {greedy: "hoards", wrong: "corrupts"}.get(number, "passes"))
    names = [f"gpu-{gpu.pci.replace(':', '-').replace('.', '-')}" for gpu in gpus]
    chart.install_on(stage.node, machine, health__validate="1")
    (pod,) = chart.pods()
    name = pod["metadata"]["name"]

    def tested() -> dict[str, tuple[str, str]]:
        """Return the newest result of each device, as the agent logged it."""
        found = re.finditer(r'device tested device=(\S+) .*status=(\S+)(?: problem="([^"]*)")?', chart.log(name))
        return {one[1]: (one[2], one[3] or "") for one in found}

    until("every GPU tested", lambda: set(names) <= tested().keys(), 120)
    found = tested()
    assert found[names[greedy]][0] == "could-not-run"
    assert found[names[greedy]][1].startswith("memory")
    assert (found[names[wrong]][0], found[names[good]][0]) == ("failed", "passed")
    until("what could not be tested is offered", lambda: names[greedy] in chart.devices(stage.node), 30)
    if not stage.cluster.keeps_gated:
        assert names[wrong] not in chart.devices(stage.node)

    said = json.loads(chart.run(name, "/usr/bin/dra-driver", "validate", names[good], "-o", "json", *machine.flags))
    assert [(one["verdict"], one["code"]) for one in said["devices"]] == [("passed", None)]
    (now,) = chart.pods()
    (container,) = now["status"]["containerStatuses"]
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert (container["restartCount"], container["ready"]) == (0, True), "the agent did not survive"
