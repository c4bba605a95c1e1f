"""Two agents on one node, as during a seamless upgrade: two processes, one ledger, one CDI folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.base.errors import PrepareError
from dra_driver.base.machine import Deadline
from tests.support.plugin.parts import Rig

ROOT = Path(__file__).parents[3]

# Prepares and unprepares claims of its own on devices that the other agent uses too; prints who held gpu-0 meanwhile.
AGENT = """
import json, sys
from pathlib import Path
from dra_driver.base.errors import DriverError
from tests.support.plugin.parts import Rig
rig, me = Rig(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
seen = []
for number in range(40):
    uid = rig.allocate(f"{me}-{number}", "gpu-0", "gpu-1")
    rig.prepare(uid, 30)
    seen += [sorted(uid for device, uid in rig.holders() if device == "gpu-0"), [uid]]
    rig.unprepare(uid)
    own = rig.allocate(f"{me}-own-{number}", "mig-" + me)
    rig.prepare(own, 30)
    rig.unprepare(own)
print(json.dumps(seen))
"""


def test_two_processes_share_devices_one_owner_at_a_time(rig: Rig) -> None:
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", AGENT, str(rig.root), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in (0, 1)
    ]
    for agent in agents:
        assert agent.stdout.readline() == "ready\n"
    for agent in agents:
        agent.stdin.write("go\n")
        agent.stdin.flush()
    for agent in agents:
        output, _ = agent.communicate(timeout=60)
        assert agent.returncode == 0
        seen = json.loads(output)
        assert seen[0::2] == seen[1::2]
    rig.assert_empty()


def test_a_claim_prepared_by_one_agent_is_unprepared_by_the_other(rig: Rig, tmp_path: Path) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    other = Rig(tmp_path)
    other.unprepare("u1")
    rig.assert_empty()
    other.close()


def test_repair_leaves_a_claim_alone_that_the_other_agent_works_on(rig: Rig, tmp_path: Path) -> None:
    from dra_driver.node.ledger.record import ClaimState

    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.ledger.set_state("u1", ClaimState.PREPARING)
    other = Rig(tmp_path)
    with rig.locks.hold(["claim/u1"], Deadline.after(1)):
        assert other.repair.run() == 0
        with pytest.raises(PrepareError, match="claim/u1"):
            other.preparer.unprepare("u1", Deadline.after(0.1))
    assert other.repair.run() == 1
    rig.assert_empty()
    other.close()
