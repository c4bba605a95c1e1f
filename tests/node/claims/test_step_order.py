"""The order of a plan's steps, which is recorded and in which they are carried out."""

from dra_driver.base.wire import DeviceType, Interval, Share, ShareMode, TimeSlicingSettings
from dra_driver.hardware.facts import Edits
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry, join_claim
from dra_driver.node.claims.device_config import DeviceConfig
from dra_driver.node.claims.plan import plan_prepare
from dra_driver.node.devices.describing import Device

GIB = 1 << 30
LONG = TimeSlicingSettings(Interval.LONG)


def gpu(index: int, *, mig_enabled: bool = False) -> NvidiaGpu:
    return NvidiaGpu(f"GPU-{index}", f"0000:0{index}:00.0", index, 80 * GIB, mig_enabled=mig_enabled)


def kinds(*devices: Device, config: DeviceConfig | None = None) -> list[str]:
    results = tuple(AllocatedDevice(f"r{i}", "p", device.name) for i, device in enumerate(devices))
    claim = AllocatedClaim("u", "ns", "c", results, (ConfigEntry(config),) if config else ())
    on_node = join_claim(claim, {device.name: device for device in devices})
    edits = {device.name: Edits() for device in devices if device.name not in on_node.made}
    return [step.kind for step in plan_prepare(on_node, edits, Edits(), "x").steps]


def test_the_steps_of_several_devices_come_in_the_order_of_their_kinds() -> None:
    share = Share("gpu-3", ShareMode.MEMORY, None, LONG, is_hard=True)
    shared = Device("gpu-3", DeviceType.GPU_SHARE, {}, {"memory": GIB}, gpu(3), share=share)
    passed = Device("gpu-2-vfio", DeviceType.VFIO, {}, {}, gpu(2))
    whole = Device("gpu-1", DeviceType.GPU, {}, {}, gpu(1, mig_enabled=True), counter_set="gpu-1")
    assert kinds(shared, passed, whole) == ["mig-mode", "passthrough", "sharing", "memory-limit", "cdi-file"]


def test_a_gpu_is_shared_before_its_compute_units_are_chosen() -> None:
    device = Device("gpu-1", DeviceType.GPU, {"architecture": "gfx942"}, {"computeUnits": 304}, gpu(1))
    config = DeviceConfig("GpuConfig", LONG, compute_units=38)
    assert kinds(device, config=config) == ["sharing", "compute-units", "cdi-file"]
