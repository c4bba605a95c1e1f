"""The real agent with a sharing configuration that changes while claims hold shares."""

from pathlib import Path

import pytest

from dra_driver.simulator.example import load_example, load_objects
from dra_driver.simulator.run import EmbeddedNode
from tests.support.waiting import until

ROOT = Path(__file__).parents[4]
GPU = "gpu-0000-43-00-0"
REPLICAS = "version: rules/v1\nrules: [{match: {types: [gpu]}, replicas: 3, sharing: {strategy: TimeSlicing}}]\n"
WHOLE = "version: rules/v1\nrules: [{exclusive: true}]\n"


class World:
    """A node whose rules can be rewritten."""

    def __init__(self, folder: Path, version: str):
        self.rules = folder / "rules.yaml"
        self.write(REPLICAS)
        paths = sorted((ROOT / "deviceclasses").glob("*.yaml"))
        classes = [wire for path in paths for wire in load_objects(path, path.read_text())]
        profile = str(ROOT / "examples" / "sharing" / "node" / "profile.yaml")
        self.node = EmbeddedNode(profile, classes=classes, version=version, sharing=self.rules)

    def write(self, text: str) -> None:
        fresh = self.rules.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.rules)

    def devices(self) -> dict[str, str]:
        """Return the published GPUs and their types."""
        found = [device for one in self.node.slices() for device in one["spec"].get("devices", ())]
        types = {device["name"]: device["attributes"]["type"]["string"] for device in found}
        return {name: kind for name, kind in types.items() if "mig" not in name}


@pytest.fixture(params=["1.35", "1.36"])
def world(tmp_path, request):
    made = World(tmp_path, request.param)
    try:
        made.node.start()
        yield made
    finally:
        assert made.node.stop() == 0


def test_rules_that_change_reach_the_slices_but_not_what_claims_hold(world):
    before = until(world.devices, what="slices")
    names = {name.partition("-share-")[0] for name in before}
    assert set(before.values()) == {"gpu-share"}
    stages = world.node.runner().run(load_example(ROOT / "examples" / "sharing" / "01-replicas.yaml"))
    report = next(stages)
    assert [line for line in report.unmet if " takes " not in line] == []
    (held,) = {one.choice.id[2].partition("-share-")[0] for claim in report.claims for one in claim.held}
    world.write("version: rules/v1\nrules: [{replicas: 1}]\n")
    until(
        lambda: "the previous one stays in force" in world.node.agent.log.read_text(),
        what="the fault in the log",
    )
    assert world.devices() == before
    world.write(WHOLE)
    others = dict.fromkeys(names - {held}, "gpu")  # the device that is held in shares is not offered
    until(lambda: world.devices() == others, what="the others whole")
    report = next(stages)
    assert report.left == []
    until(lambda: world.devices() == {**others, held: "gpu"}, what=f"{held} whole again")
