"""Facts made up for tests: one GPU with everything known, and strategies for any facts at all."""

from dataclasses import fields, replace
from typing import get_type_hints

from hypothesis import strategies as st

from dra_driver.hardware.facts import Facts, MigProfile, PartitionFacts, PassthroughFacts, Problem
from dra_driver.hardware.nvidia.published import NvidiaGpu

FULL_GPU = NvidiaGpu(
    uuid="GPU-77ddc041-0839-5bf6-add8-85f3215d606d",
    pci_address="0000:65:00.0",
    minor=3,
    nodes=("nvidia3",),
    memory_bytes=81559 << 20,
    product_name="NVIDIA H100 80GB HBM3",
    brand="Nvidia",
    architecture="Hopper",
    compute_capability="9.0.0",
    addressing_mode="None",
    numa_node=1,
    pcie_root="pci0000:64",
    link_domain="5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54.32766",
    nvlink_count=18,
    mig_capable=True,
    ecc_enabled=True,
    serial="1650124008279",
    vbios_version="96.00.A5.00.01",
    memory_bandwidth_bytes_per_s=3350 * 10**9,
    power_limit_max_w=700,
    sm_clock_max_mhz=1980,
)

PARTITION = PartitionFacts(
    uuid="MIG-cffade30-c051-5a2d-bfd8-70d89fa95649",
    profile="1g.10gb",
    gi_profile_id=19,
    gi_id=9,
    ci_id=0,
    start=2,
    size=1,
    memory_bytes=9984 << 20,
    multiprocessors=16,
    copy_engines=1,
    decoders=1,
    encoders=0,
    jpeg_engines=1,
    ofa_engines=0,
)


def facts(*gpus: NvidiaGpu) -> Facts:
    """Return the facts of a node with these GPUs and a known driver."""
    return Facts("test", gpus=gpus, driver_version="580.126.20", runtime_version="13.0.0")


def with_everything_known(gpu: NvidiaGpu) -> NvidiaGpu:
    """Return the GPU with each fact that it lacks filled in."""
    missing = {f.name: getattr(FULL_GPU, f.name) for f in fields(gpu) if getattr(gpu, f.name) is None}
    return replace(gpu, **missing)


_texts = st.text(max_size=80) | st.text(alphabet="0123456789.-abc", max_size=20)
_numbers = st.integers(-5, 20) | st.integers()


def _any_of(cls: type, **known: st.SearchStrategy) -> st.SearchStrategy:
    """Return a strategy for instances of a dataclass with any values of the declared types."""
    by_type = {str: _texts, int: _numbers, bool: st.booleans(), type(None): st.none()}
    hints = get_type_hints(cls)
    parts = {}
    for field in fields(cls):
        kinds = getattr(hints[field.name], "__args__", (hints[field.name],))
        parts[field.name] = known[field.name] if field.name in known else st.one_of(*[by_type[kind] for kind in kinds])
    return st.builds(cls, **parts)


any_partition = _any_of(PartitionFacts, start=st.integers(-2, 20), size=st.integers(-2, 40))
any_profile = _any_of(
    MigProfile,
    size=st.integers(-2, 40),
    starts=st.lists(st.integers(-2, 20), max_size=8).map(tuple),
)
any_gpu = _any_of(
    NvidiaGpu,
    pci_address=st.sampled_from(["0000:65:00.0", "0000:66:00.0", "0001:00:00.0", "10000:e1:00.0"]) | _texts,
    partitions=st.lists(any_partition, max_size=4).map(tuple),
    mig_profiles=st.lists(any_profile, max_size=4).map(tuple),
    nodes=st.just(("nvidia0",)),
    unusable=st.lists(st.tuples(_numbers, _numbers), max_size=2).map(tuple),
    passthrough=st.none() | st.builds(PassthroughFacts, addressable_bytes=_numbers),
)
any_facts = st.builds(
    Facts,
    vendor=st.just("test"),
    gpus=st.lists(any_gpu, max_size=4).map(tuple),
    driver_version=st.none() | _texts | st.just("580.126.20"),
    runtime_version=st.none() | _texts,
    problems=st.lists(st.builds(Problem, _texts, _texts, _texts), max_size=2).map(tuple),
    waiting_for=_texts,
)
