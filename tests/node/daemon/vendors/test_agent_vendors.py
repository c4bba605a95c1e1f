"""One agent process for several vendors: each has a driver of its own, and none of them holds up another."""

import json
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.base.errors import DriverError
from dra_driver.base.names import pool_name
from dra_driver.simulator.plugin_watcher import ClaimRef
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import NODE, Stage, stage
from tests.support.nodes.fake_node import can_make_nodes
from tests.support.nodes.mixed_node import MixedNode, UnansweredFolder
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.waiting import until

AMD, INTEL, NVIDIA = "gpu.amd.com", "gpu.intel.com", "gpu.nvidia.com"
ONE_EACH = {NVIDIA: "gpu-0000-65-00-0", AMD: "gpu-0000-05-00-0", INTEL: "gpu-0000-03-00-0"}


class Machine:
    """A node with one NVIDIA, two AMD and one Intel GPU, and its agent."""

    def __init__(self, here: Stage, folder: Path, *, has_amd: bool = True) -> None:
        self.here, self.node = here, MixedNode(folder, has_amd=has_amd)

    def start(self, hardware: str = "auto", *flags: str) -> Any:
        roots = self.node.roots
        places = f"--sysfs-root={roots.sys}", f"--proc-root={roots.proc}", f"--dev-root={roots.dev}"
        return self.here.start(hardware, *places, *flags, environment=self.node.environment)

    def devices(self, driver: str) -> set[str]:
        slices = [one for one in self.here.api.items(SLICES) if one["spec"]["driver"] == driver]
        return {device["name"] for one in slices for device in one["spec"].get("devices", ())}

    def wait_published(self, *drivers: str) -> None:
        until(lambda: all(self.devices(driver) for driver in drivers), what=f"slices of {drivers}")

    def claim(self, devices: dict[str, str]) -> ClaimRef:
        """Return a claim that has one device of each of these drivers."""
        requests = [{"name": driver.split(".")[1], "exactly": {"deviceClassName": driver}} for driver in devices]
        wire = self.here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"generateName": "claim-", "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        results = [
            {"request": driver.split(".")[1], "driver": driver, "pool": pool_name(NODE, driver), "device": device}
            for driver, device in devices.items()
        ]
        wire["status"] = {"allocation": {"devices": {"results": results}}}
        name = wire["metadata"]["name"]
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status"
        self.here.api.request("PUT", path, body=wire)
        return ClaimRef("default", name, wire["metadata"]["uid"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    with stage("1.36") as here:
        yield Machine(here, tmp_path)


pytestmark = pytest.mark.gcc


def nodes_of(path: Path) -> list[str]:
    document = json.loads(path.read_text())
    return [node["path"] for one in document["devices"] for node in one["containerEdits"]["deviceNodes"]]


def test_each_vendor_has_a_driver_of_its_own_and_a_claim_gets_a_device_of_each(machine: Machine) -> None:
    machine.start()
    machine.wait_published(NVIDIA, AMD, INTEL)
    assert machine.devices(AMD) == {"gpu-0000-05-00-0", "gpu-0000-06-00-0"}
    pools = {one["spec"]["driver"]: one["spec"]["pool"]["name"] for one in machine.here.api.items(SLICES)}
    assert pools == {driver: f"{NODE}/{driver}" for driver in (NVIDIA, AMD, INTEL)}
    claim = machine.claim(ONE_EACH)
    for driver, device in ONE_EACH.items():
        plugin = machine.here.kubelet.wait_registered(driver)
        ((prepared,),) = plugin.prepare([claim]).values()
        assert prepared.device == device
        assert (machine.here.kubelet.plugins_dir / driver / "ledger.db").exists()
    files = {
        path.name.split("-claim_")[0].removeprefix("k8s."): path for path in machine.here.kubelet.cdi_dir.iterdir()
    }
    assert nodes_of(files[NVIDIA])[0] == "/dev/nvidia0"
    assert nodes_of(files[AMD]) == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert nodes_of(files[INTEL]) == ["/dev/dri/card0", "/dev/dri/renderD128"]
    for driver in ONE_EACH:
        assert machine.here.kubelet.wait_registered(driver).unprepare([claim]) == {claim.uid: ""}
    assert not list(machine.here.kubelet.cdi_dir.iterdir())


def test_only_the_listed_vendors_are_served(machine: Machine) -> None:
    machine.start("nvidia,amd")
    machine.wait_published(NVIDIA, AMD)
    assert not machine.devices(INTEL)
    assert not (machine.here.kubelet.plugins_dir / INTEL).exists()


def test_auto_with_a_drivers_name_serves_that_driver_alone(machine: Machine) -> None:
    machine.start("auto", "--driver-name", NVIDIA)
    machine.wait_published(NVIDIA)
    assert not machine.devices(AMD)
    assert not (machine.here.kubelet.plugins_dir / AMD).exists()


def test_a_vendor_whose_reads_never_return_holds_up_no_other(machine: Machine) -> None:
    machine.start("nvidia,amd,intel")
    machine.wait_published(NVIDIA, AMD, INTEL)
    machine.node.hang_nvidia()
    claims = [machine.claim({AMD: ONE_EACH[AMD]}) for _ in range(20)]
    plugin = machine.here.kubelet.wait_registered(AMD)
    for claim in claims:
        assert not isinstance(plugin.prepare([claim])[claim.uid], str)
        assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert machine.devices(INTEL)


def stopped_programs(script: Path) -> list[str]:
    """Return the ids of the stopped processes that run a script."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = str(script) in (process / "cmdline").read_text()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [process.name] if is_ours and state == "T" else []
    return found


def test_a_stopped_test_program_of_one_vendor_holds_up_no_other(machine: Machine) -> None:
    script = machine.here.folder / "examine"
    script.write_text('#!/bin/sh\nif [ "$1" = 0000:65:00.0 ]; then kill -STOP $$; fi\n')
    script.chmod(0o755)
    machine.start("nvidia,amd,intel", f"--validate={script} {{pci}}")
    machine.wait_published(AMD, INTEL)
    until(lambda: stopped_programs(script), what="the program that tests NVIDIA's GPU to be stopped")
    for driver in (AMD, INTEL):
        plugin = machine.here.kubelet.wait_registered(driver)
        for claim in [machine.claim({driver: ONE_EACH[driver]}) for _ in range(5)]:
            assert not isinstance(plugin.prepare([claim])[claim.uid], str)
            assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert stopped_programs(script)


def test_a_vendor_whose_files_never_answer_holds_up_no_other_from_the_start(machine: Machine) -> None:
    try:
        hanging = UnansweredFolder(machine.node.folder / "sys/class/kfd")
        hanging.__enter__()
    except OSError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        stack.push(hanging)
        agent = machine.start("nvidia,amd,intel")
        machine.wait_published(NVIDIA, INTEL)
        plugin = machine.here.kubelet.wait_registered(INTEL)
        claim = machine.claim({INTEL: ONE_EACH[INTEL]})
        ((prepared,),) = plugin.prepare([claim]).values()
        assert prepared.device == ONE_EACH[INTEL]
        assert not machine.devices(AMD)
        assert machine.here.end(agent) == 0


def test_a_vendor_whose_hardware_appears_later_is_served_from_then_on(tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    with stage("1.36") as here:
        machine = Machine(here, tmp_path, has_amd=False)
        machine.start()
        machine.wait_published(NVIDIA, INTEL)
        machine.node.add_amd()
        machine.wait_published(AMD)


def test_an_agent_that_is_killed_has_the_claims_of_every_vendor_after_its_restart(machine: Machine) -> None:
    agent = machine.start()
    machine.wait_published(NVIDIA, AMD, INTEL)
    claim = machine.claim(ONE_EACH)
    for driver in ONE_EACH:
        machine.here.kubelet.wait_registered(driver).prepare([claim])
    before = {path.name: path.read_bytes() for path in machine.here.kubelet.cdi_dir.iterdir()}
    machine.here.end(agent, signal.SIGKILL)
    machine.start()
    for driver in ONE_EACH:
        until(lambda driver=driver: machine.here.kubelet.wait_registered(driver), what=driver)
    until(lambda: machine.here.log().count("hardware scanned") >= 3, what="a discovery of all hardware")
    assert {path.name: path.read_bytes() for path in machine.here.kubelet.cdi_dir.iterdir()} == before
    for driver in ONE_EACH:
        assert machine.here.kubelet.wait_registered(driver).unprepare([claim]) == {claim.uid: ""}


@pytest.mark.long
def test_an_agent_killed_during_a_hundred_starts_of_pods_loses_no_claim_and_leaves_no_file(machine: Machine) -> None:
    agent = machine.start()
    machine.wait_published(NVIDIA, AMD, INTEL)
    left = dict.fromkeys(ONE_EACH, 34)
    faults: list[str] = []

    def patiently(call: Callable[[], object], is_done: Callable[[object], bool]) -> None:
        """Repeat a call of the kubelet until it succeeds, as the kubelet does: the agent may be killed meanwhile."""

        def succeeded() -> bool:
            try:
                return is_done(call())
            except (grpc.RpcError, AssertionError, DriverError, OSError):
                return False

        until(succeeded, what="an answer")

    def start_pod(driver: str) -> None:
        claim, plugin = machine.claim({driver: ONE_EACH[driver]}), machine.here.kubelet.wait_registered
        patiently(lambda: plugin(driver).prepare([claim])[claim.uid], lambda found: not isinstance(found, str))
        patiently(lambda: plugin(driver).unprepare([claim]), lambda found: found == {claim.uid: ""})

    def start_pods(driver: str) -> None:
        try:
            while left[driver]:
                start_pod(driver)
                left[driver] -= 1
        except Exception as error:  # shown by the test itself
            faults.append(f"{driver}: {error!r}")

    threads = [threading.Thread(target=start_pods, args=(driver,)) for driver in ONE_EACH]
    for thread in threads:
        thread.start()
    for mark in (75, 50, 25):
        until(lambda mark=mark: sum(left.values()) <= mark or faults, timeout_s=90, what=f"{mark} pods left")
        machine.here.end(agent, signal.SIGKILL)
        agent = machine.start()
    for thread in threads:
        thread.join(90)
    assert (faults, sum(left.values())) == ([], 0)
    assert list(machine.here.kubelet.cdi_dir.iterdir()) == []


def test_a_node_without_any_vendors_hardware_idles_and_loads_nothing_of_them(tmp_path: Path) -> None:
    with stage("1.36") as here:
        roots = [f for name in ("sysfs", "proc", "dev") for f in (f"--{name}-root", str(tmp_path))]
        agent = here.start("auto", *roots, "--metrics-address=127.0.0.1:0", is_warm=False)
        until(lambda: here.log().count("idle until one appears") == 4, what="four idle drivers")
        address = re.search(r"address=(127.0.0.1:\d+)", here.log())[1]
        page = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
        assert "dra_driver_build_info{" in page
        maps = Path(f"/proc/{agent.pid}/maps").read_text()
        assert [name for name in ("grpc", "sqlite") if name in maps] == []
        assert here.end(agent) == 0


def test_the_page_names_the_driver_where_several_have_work_and_has_each_measurement_with_its_claim(
    machine: Machine,
) -> None:
    machine.start("auto", "--metrics-address=127.0.0.1:0", "--telemetry-interval=1")
    machine.wait_published(NVIDIA, AMD, INTEL)
    address = re.search(r"address=(127.0.0.1:\d+)", machine.here.log())[1]
    claim = machine.claim({driver: ONE_EACH[driver] for driver in (NVIDIA, AMD)})
    for driver in (NVIDIA, AMD):
        machine.here.kubelet.wait_registered(driver).prepare([claim])

    def page() -> str:
        return urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()

    of_claim = f'dra_claim_uid="{claim.uid}"'
    busy = re.compile(
        rf'^gpu_gfx_activity{{.*hostname="{NODE}".*{of_claim},dra_driver_name="{AMD}".*}} 97$', re.MULTILINE
    )
    until(lambda: busy.search(page()), what="what AMD's GPU does, by claim")
    until(lambda: re.search(rf"^DCGM_FI_\w+{{.*{of_claim}", page(), re.MULTILINE), what="and NVIDIA's")
    text = page()
    for driver, count in ((NVIDIA, 1), (AMD, 2), (INTEL, 1)):
        assert f'dra_driver_devices{{driver="{driver}",type="gpu"}} {count}.0' in text
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))
    assert text.count("\ndra_claim_device_info{") == 2


def test_a_device_plugin_of_one_vendor_withholds_that_vendors_devices_alone(machine: Machine) -> None:
    folder = machine.node.folder / "device-plugins"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plugin:
        plugin.bind(str(folder / "amd.com_gpu"))
        plugin.listen()
        machine.start("auto", f"--device-plugins-directory-path={folder}")
        machine.wait_published(NVIDIA, INTEL)
        until(lambda: "a device plugin serves these GPUs" in machine.here.log(), what="the plugin to be noticed")
        assert not machine.devices(AMD)


def test_no_device_is_published_beside_a_vendors_own_driver_and_the_other_vendors_are_served(machine: Machine) -> None:
    plugin = StandInPlugin(machine.here.folder, AMD, name="amds-own").start()
    try:
        machine.here.kubelet.wait_registered(AMD)
        machine.start()
        machine.wait_published(NVIDIA, INTEL)
        until(lambda: "another driver has this name" in machine.here.log(), what="the driver to be noticed")
        assert not machine.devices(AMD)
    finally:
        plugin.stop()
    machine.wait_published(AMD)
