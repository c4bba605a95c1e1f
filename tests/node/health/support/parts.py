"""Facts and evidence for tests of health."""

from dra_driver.hardware.evidence import HealthReport, Source, Vitals, XidReport
from dra_driver.hardware.facts import PartitionFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu

ONE, TWO = "0000:1b:00.0", "0000:43:00.0"
BOOT = "1b4e28ba"


def partition(gi_id, profile_id=19, start=0):
    engines = {f"{name}s": 1 for name in ("copy_engine", "decoder", "encoder", "jpeg_engine", "ofa_engine")}
    return PartitionFacts(
        uuid=f"MIG-{gi_id}",
        profile="1g.10gb",
        gi_profile_id=profile_id,
        gi_id=gi_id,
        ci_id=0,
        start=start,
        size=1,
        memory_bytes=1 << 30,
        multiprocessors=16,
        **engines,
    )


def gpu(address=ONE, **more):
    return NvidiaGpu(uuid=f"GPU-{address}", pci_address=address, minor=0, memory_bytes=80 << 30, **more)


KNOWN = {address: gpu(address) for address in (ONE, TWO)}


def xid(code, at=100.0, address=ONE, source=Source.EVENT, gi_id=None):
    return XidReport(address, code, at, source, gi_id)


def reading(at, address=ONE, **values):
    return Vitals(address, at, **{"uuid": f"GPU-{address}", **values})


def report(*found, **more):
    xids = tuple(one for one in found if isinstance(one, XidReport))
    return HealthReport(xids, tuple(one for one in found if isinstance(one, Vitals)), **more)


def shown(faults):
    return {(str(fault.key), fault.value) for fault in faults}
