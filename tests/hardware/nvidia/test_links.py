"""NVLink counts and domains: the graph alone, and through the library; what a lost GPU must not change."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.hardware.nvidia.gpu_reading import domains
from tests.hardware.nvidia.conftest import Machine, by_address, codes
from tests.support.fake_nvml import Code, Gpu, a100_40, gb200, h100, hgx_h100, l40s, nvl72_tray

GPU_LINK, NPU_LINK, SWITCH_LINK = 0, 1, 2
CLUSTER = uuid.UUID("12345678-1234-5678-1234-567812345678")


def domain_of(machine: Machine) -> dict[str, str | None]:
    return {gpu.pci_address: gpu.link_domain for gpu in machine.discover().gpus}


def join(one: Gpu, other: Gpu, links: int = 4) -> None:
    one.links += [(1, GPU_LINK, other.pci)] * links
    other.links += [(1, GPU_LINK, one.pci)] * links


def test_all_gpus_behind_switches_are_one_domain_named_after_the_first_switch(machine: Machine) -> None:
    machine.add(*hgx_h100())
    facts = machine.discover()
    assert {g.link_domain for g in facts.gpus} == {"nvswitch-0000-05-00-0"}
    assert {g.nvlink_count for g in facts.gpus} == {18}
    assert facts.problems == ()


def test_the_loss_of_any_gpu_leaves_a_switch_domain_as_it_is_even_after_a_restart(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100())
    before = domain_of(machine)
    for gpu in gpus:
        gpu.is_lost = True
        machine.write()
        after = domain_of(machine)
        assert after == {address: d for address, d in before.items() if address != gpu.pci}
        gpu.is_lost = False


def test_bridged_pairs_are_domains_of_their_own(machine: Machine) -> None:
    gpus = [a100_40(f"0000:{bus}:00.0", minor) for minor, bus in enumerate(("17", "31", "b1", "ca"))]
    join(gpus[0], gpus[1])
    join(gpus[2], gpus[3])
    machine.add(*gpus)
    assert domain_of(machine) == {
        "0000:17:00.0": "nvlink-0000-17-00-0",
        "0000:31:00.0": "nvlink-0000-17-00-0",
        "0000:b1:00.0": "nvlink-0000-b1-00-0",
        "0000:ca:00.0": "nvlink-0000-b1-00-0",
    }


def test_bridged_gpus_keep_their_domain_when_the_first_of_them_is_lost(machine: Machine) -> None:
    gpus = [a100_40(f"0000:{bus}:00.0", minor) for minor, bus in enumerate(("17", "31", "b1"))]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        join(gpus[one], gpus[other])
    machine.add(*gpus)
    hardware = machine.hardware()
    assert {g.link_domain for g in hardware.discover().gpus} == {"nvlink-0000-17-00-0"}
    gpus[0].is_lost = True
    for gpu in gpus[1:]:
        gpu.links = [(int(remote != gpus[0].pci), kind, remote) for _, kind, remote in gpu.links]
    machine.write()
    facts = hardware.discover()
    assert [g.link_domain for g in facts.gpus] == ["nvlink-0000-17-00-0"] * 2
    assert [g.nvlink_count for g in facts.gpus] == [4, 4]


def test_mig_mode_that_hides_links_does_not_change_the_domain(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    hardware = machine.hardware()
    before = by_address(hardware.discover())[gpus[0].pci].link_domain
    gpus[0].partition("1g.10gb", 0)
    gpus[0].links.clear()
    machine.write()
    assert by_address(hardware.discover())[gpus[0].pci].link_domain == before


def test_a_gpu_without_links_has_no_domain(machine: Machine) -> None:
    machine.add(l40s("0000:52:00.0", 0))
    idle = h100("0000:65:00.0", 1)
    idle.links = [(0, SWITCH_LINK, "0000:05:00.0")] * 18
    machine.add(idle)
    gpus = by_address(machine.discover())
    assert (gpus["0000:52:00.0"].nvlink_count, gpus["0000:52:00.0"].link_domain) == (None, None)
    assert (gpus["0000:65:00.0"].nvlink_count, gpus["0000:65:00.0"].link_domain) == (0, None)


def test_links_to_a_cpu_count_but_join_nothing(machine: Machine) -> None:
    gpu = h100("0000:65:00.0", 0)
    gpu.links = [(1, NPU_LINK, "0004:00:00.0")] * 3
    machine.add(gpu)
    (found,) = machine.discover().gpus
    assert (found.nvlink_count, found.link_domain) == (3, None)


def test_switches_that_a_guest_is_not_shown_still_join_its_gpus(machine: Machine) -> None:
    gpus = [h100(f"0000:0{n}:00.0", n) for n in (1, 2)]
    for gpu in gpus:
        gpu.links = [(1, SWITCH_LINK, "0000:00:00.0")] * 18
    machine.add(*gpus)
    assert set(domain_of(machine).values()) == {"nvswitch-hidden"}


def test_gpus_are_joined_even_if_an_older_library_does_not_report_kinds_of_peers(machine: Machine) -> None:
    machine.install_library(without=("nvmlDeviceGetNvLinkRemoteDeviceType",))
    machine.add(*hgx_h100(3))
    found = set(domain_of(machine).values())
    assert len(found) == 1
    assert None not in found


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_every_version_of_the_fabric_call_is_understood(machine: Machine, newest: int) -> None:
    gpus = nvl72_tray(CLUSTER, 7)
    for gpu in gpus:
        gpu.facts["fabric"] = f"3 0 {CLUSTER.hex} 7 {newest}"
    machine.add(*gpus)
    assert set(domain_of(machine).values()) == {f"{CLUSTER}.7"}


def test_a_library_with_the_first_fabric_call_only_is_understood(machine: Machine) -> None:
    machine.install_library(without=("nvmlDeviceGetGpuFabricInfoV",))
    machine.add(*nvl72_tray(CLUSTER, 7))
    assert set(domain_of(machine).values()) == {f"{CLUSTER}.7"}


def test_a_gpu_that_is_still_joining_its_fabric_has_no_domain_yet(machine: Machine) -> None:
    gpus = nvl72_tray(CLUSTER, 7)
    gpus[0].facts["fabric"] = f"2 0 {'0' * 32} 0"
    machine.add(*gpus)
    hardware = machine.hardware()
    facts = hardware.discover()
    assert by_address(facts)[gpus[0].pci].link_domain is None
    assert codes(facts) == {"hardware.fabric-pending"}
    before = hardware.fingerprint()
    gpus[0].facts["fabric"] = f"3 0 {CLUSTER.hex} 7"
    machine.write()
    assert hardware.fingerprint() != before
    assert by_address(hardware.discover())[gpus[0].pci].link_domain == f"{CLUSTER}.7"


def test_a_registration_that_failed_is_a_problem(machine: Machine) -> None:
    gpu = gb200("0008:01:00.0", 0)
    gpu.facts["fabric"] = f"3 999 {CLUSTER.hex} 7"
    machine.add(gpu)
    facts = machine.discover()
    assert facts.gpus[0].link_domain is None
    assert codes(facts) == {"hardware.fact-unreadable"}


@pytest.mark.parametrize("fails", ["registration", "call"])
def test_a_gpu_whose_fabric_is_not_known_is_in_no_domain_though_its_links_are_up(machine: Machine, fails: str) -> None:
    gpus = machine.add(*hgx_h100(2))
    if fails == "call":
        gpus[0].fail("nvmlDeviceGetGpuFabricInfoV", Code.UNKNOWN)
    else:
        gpus[0].facts["fabric"] = f"3 999 {CLUSTER.hex} 7"
    machine.write()
    hardware = machine.hardware()
    facts = hardware.discover()
    assert [gpu.link_domain for gpu in facts.gpus] == [None, "nvswitch-0000-05-00-0"]
    assert codes(facts) == {"hardware.fact-unreadable"}
    before = hardware.fingerprint()
    gpus[0].heal()
    gpus[0].facts["fabric"] = f"3 0 {'0' * 32} 0"
    machine.write()
    assert hardware.fingerprint() != before, "the change has to show that the fabric is known"
    assert len({gpu.link_domain for gpu in hardware.discover().gpus}) == 1


def test_links_that_can_t_be_read_are_a_problem(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail("nvmlDeviceGetNvLinkState", Code.UNKNOWN)
    machine.write()
    facts = machine.discover()
    assert facts.gpus[0].nvlink_count is None
    assert codes(facts) == {"hardware.fact-unreadable"}


ADDRESSES = st.sampled_from([f"0000:{bus:02x}:00.0" for bus in range(1, 9)])
SWITCH_VERTICES = st.sampled_from(["switch/0000:f1:00.0", "switch/0000:f2:00.0"])
EDGES = st.sets(st.tuples(ADDRESSES, ADDRESSES | SWITCH_VERTICES))


@given(edges=EDGES)
def test_linked_gpus_share_a_domain_and_others_do_not(edges: set[tuple[str, str]]) -> None:
    found = domains(edges)
    for one, other in edges:
        if not other.startswith("switch/"):
            assert found[one] == found[other]
    reach: dict[str, set[str]] = {}
    for one, other in edges:
        merged = reach.get(one, {one}) | reach.get(other, {other})
        for vertex in merged:
            reach[vertex] = merged
    for one in found:
        for other in found:
            assert (found[one] == found[other]) == (other in reach[one])


@given(edges=EDGES, order=st.randoms())
def test_the_order_in_which_links_are_seen_does_not_matter(edges: set[tuple[str, str]], order: object) -> None:
    shuffled = sorted(edges)
    order.shuffle(shuffled)
    assert domains(shuffled) == domains(edges)
