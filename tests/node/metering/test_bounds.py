"""The largest number of series, which docs/telemetry.md states."""

import json

from dra_driver.hardware.metered import Measure, ProcessUse
from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.metering.series import claim_lines, lines_of
from tests.support.metering.snapshots import USUAL, Made, holder, samples

OF_INSTANCE = (
    Measure.MEMORY_FREE_BYTES, Measure.MEMORY_USED_BYTES, Measure.MEMORY_RESERVED_BYTES, Measure.GRAPHICS_RATIO,
    Measure.SM_RATIO, Measure.TENSOR_RATIO, Measure.DRAM_RATIO,
)  # fmt: skip


def node(folder, *, parts):
    mig = {"mig": [{"profile": "1g.10gb", "start": start} for start in range(parts)]} if parts else {}
    gpus = [{"pci": f"0000:0{index + 1}:00.0"} for index in range(8)]
    document = {"about": "8 GPUs", "gpuDefaults": {"model": "h100-sxm5-80gb", **mig}, "gpus": gpus}
    (folder / "p.yaml").write_text(json.dumps(document))
    return Made(facts_of(load_profile(folder / "p.yaml"), "node-1").gpus)


def count(made):
    return len(samples([*lines_of(USUAL.names, made.snapshot()), *claim_lines(made.snapshot())]))


def test_eight_gpus_in_use_have_at_most_300_series(tmp_path):
    made = node(tmp_path, parts=0)
    for index, gpu in enumerate(made.gpus):
        made.read(index, dict.fromkeys(Measure, 1.0))
        made.holders[gpu.pci_address, None] = (holder(f"claim-{index}"),)
    assert 200 < count(made) <= 300


def test_four_tenants_on_each_of_56_partitions_have_at_most_1500_series(tmp_path):
    made = node(tmp_path, parts=7)
    for index, gpu in enumerate(made.gpus):
        made.read(index, dict.fromkeys(Measure, 1.0))
        for partition in gpu.partitions:
            made.read(index, dict.fromkeys(OF_INSTANCE, 1.0), partition.gi_id, (ProcessUse(1, 1),))
            tenants = (holder(f"claim-{index}-{partition.gi_id}-{number}", share=str(number)) for number in range(4))
            made.holders[gpu.pci_address, partition.gi_id] = tuple(tenants)
    assert 800 < count(made) <= 1500
