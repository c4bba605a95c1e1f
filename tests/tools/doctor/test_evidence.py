"""Evidence read from real places: an API server over HTTP, folders, sockets, a ledger. Not covered: the checks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.base.machine import read_boot_id
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.node.ledger.unreleased import boot_seconds
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.http import Response
from dra_driver.simulator.store import SLICES
from dra_driver.tools.doctor.bundle import write_bundle
from dra_driver.tools.doctor.command import examine
from dra_driver.tools.doctor.evidence import ClusterEvidence, read_cluster, read_kernel_driver, read_runtimes
from dra_driver.tools.doctor.finding import Unexamined
from dra_driver.tools.doctor.node_evidence import EvidenceFolders, read_node
from dra_driver.tools.world.access import PROBES
from tests.support.nodes.fake_node import FakeNode
from tests.support.plugin.parts import Rig
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.tools.doctor.support import evidence as e

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(**options):
        server = EmbeddedApi(**options)
        server.start()
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        api = KubeApi(load_credentials(str(server.write_kubeconfig(tmp_path / "kubeconfig"))))
        started.append((server, api))
        return server, api

    yield start
    for server, api in started:
        api.close()
        server.stop()


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="dra"))  # short path: a socket's name is limited
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
@pytest.mark.parametrize("is_on", [True, False])
def test_gates_follow_from_what_the_server_keeps_of_a_dry_run(serve, version, is_on):
    server, api = serve(version=version, gates=dict.fromkeys(PROBES, is_on))
    assert read_cluster(api, e.DRIVER).kept == dict.fromkeys(PROBES, is_on)
    assert server.items(SLICES) == []


@pytest.mark.parametrize(
    ("version", "served", "expected"),
    [
        ("1.34", {"v1alpha3": ["devicetaintrules"]}, ""),
        ("1.35", {"v1alpha3": ["devicetaintrules", "devicetaintrules/status"]}, "v1alpha3"),
        ("1.36", {"v1beta2": ["devicetaintrules"]}, "v1beta2"),
        ("1.36", {"v1beta2": ["resourceclaims"]}, ""),
        ("1.36", {}, ""),
        ("1.37", {"v1": ["resourceclaims", "devicetaintrules"]}, "v1"),
    ],
)
def test_rules_that_count_pods_are_known_where_the_server_serves_them(tmp_path, version, served, expected):
    class Discoverable(EmbeddedApi):
        def _serve(self, request):
            group, _, last = request.path.rpartition("/")
            if group == "/apis/resource.k8s.io" and last in served:
                found = {"kind": "APIResourceList", "resources": [{"name": name} for name in served[last]]}
                return Response(200, json.dumps(found).encode())
            return super()._serve(request)

    server = Discoverable(version=version)
    server.start()
    api = KubeApi(load_credentials(str(server.write_kubeconfig(tmp_path / "kubeconfig"))))
    try:
        assert read_cluster(api, e.DRIVER).rules_api == expected
    finally:
        api.close()
        server.stop()


def test_kinds_that_are_not_served_are_listed_as_unseen_and_the_rest_is_read(serve):
    _, api = serve()
    cluster = read_cluster(api, e.DRIVER)
    assert [one["metadata"]["name"] for one in cluster.of("nodes")] == ["n1"]
    assert {one.what for one in cluster.unseen} == {"policies", "bindings", "daemonsets"}
    assert not cluster.has("policies")


def test_a_server_without_the_resource_api_is_a_finding(serve):
    _, api = serve()
    cluster = read_cluster(api, e.DRIVER)
    without = ClusterEvidence(cluster.version, e.DRIVER, unseen=(Unexamined("slices", "GET …: 404 page not found"),))
    assert [one.id for one in examine(without, None, NOW).findings] == ["kubernetes-no-resource-api"]


def folders_of(root: Path) -> EvidenceFolders:
    return EvidenceFolders(
        root / "cdi", root / "plugins_registry", root / "plugins", root / "device-plugins", root / "host"
    )


def test_a_node_with_an_unbound_gpu_and_no_driver_has_a_finding_for_each_thing_missing(folder):
    machine = FakeNode(folder / "machine")
    machine.add_gpu("0000:65:00.0", driver=None)
    (folder / "host/usr/src/nvidia-580.95.05").mkdir(parents=True)
    roots = machine.roots
    hardware = NvidiaHardware(Roots(roots.sys, roots.proc, roots.dev, driver=str(folder), driver_mount=str(folder)))
    node = read_node("n1", e.DRIVER, hardware, roots, folders_of(folder))
    assert node.kernel.bound == {"0000:65:00.0": None}
    findings = {one.id for one in examine(None, node, NOW).findings}
    assert {"driver-not-loaded", "driver-no-headers", "driver-not-answering"} <= findings
    assert [one.what for one in node.unseen] == ["registration sockets"]


def test_sockets_are_asked_which_driver_they_serve(folder):
    (folder / "plugins_registry").mkdir()
    other = StandInPlugin(folder, e.DRIVER, name="other")
    other.start()
    try:
        hardware = SimulatedHardware("t4", Roots(), node_name="n1")
        node = read_node("n1", e.DRIVER, hardware, Roots(), folders_of(folder))
        assert [one.serves(e.DRIVER) for one in node.sockets or ()] == [True]
        assert "node-second-driver" in {one.id for one in examine(None, node, NOW).findings}
    finally:
        other.stop()


def test_the_ledger_and_the_cdi_folder_are_read_while_the_agent_has_them_open(folder):
    rig = Rig(folder)
    rig.prepare(rig.allocate("c1", "gpu-0"))
    values = ("c2", "ns", "ended", '["gpu-1"]', '["uid-p"]', boot_seconds() + 60, read_boot_id("/proc"))
    rig.ledger._execute("INSERT INTO kept_back VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    node = read_node("n1", e.DRIVER, SimulatedHardware("t4", Roots(), node_name="n1"), Roots(), folders_of(folder))
    assert [(row.uid, row.state, row.devices, row.has_file) for row in node.rows or ()] == [
        ("c1", "prepared", ("gpu-0",), True)
    ]
    assert node.cdi_uids == {"c1"}
    found = [one for one in examine(None, node, NOW).findings if one.id == "node-unreleased"]
    assert [one.subject for one in found] == ["gpu-1"]
    assert "claim ns/ended has ended, but containers of pod uid-p may still run" in found[0].message
    rig.close()


def test_a_damaged_ledger_is_a_finding_and_left_alone(folder):
    ledger = folder / "plugins" / e.DRIVER / "ledger.db"
    ledger.parent.mkdir(parents=True)
    ledger.write_bytes(b"no database" * 100)
    hardware = SimulatedHardware("t4", Roots(), node_name="n1")
    node = read_node("n1", e.DRIVER, hardware, Roots(), folders_of(folder))
    assert "node-ledger" in {one.id for one in examine(None, node, NOW).findings}
    assert [path.name for path in ledger.parent.iterdir()] == ["ledger.db"]


UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(UNPRIVILEGED) and not shutil.which(UNPRIVILEGED[0]), reason="no setpriv")
def test_folders_without_permission_are_listed_as_unseen_and_are_no_finding(folder):
    (folder / "host/etc/containerd").mkdir(parents=True)
    (folder / "host" / CONTAINERD).write_text("version = 2\n")
    closed = [folder / "kubelet", folder / "host/etc/containerd"]
    (folder / "kubelet/plugins_registry").mkdir(parents=True)
    command = [*UNPRIVILEGED, sys.executable, "-m", "dra_driver", "doctor", "--output", "json"]
    command += ["--hardware", "simulated:demo-h100", "--node-name", "n1", "--cdi-root", str(folder / "cdi")]
    command += ["--host-root", str(folder / "host")]
    for flag, name in (("registrar", "plugins_registry"), ("plugins", "plugins")):
        command += [f"--kubelet-{flag}-directory-path", str(folder / "kubelet" / name)]
    command += ["--device-plugins-directory-path", str(folder / "kubelet/device-plugins")]
    for one in closed:
        one.chmod(0)
    try:
        environment = os.environ | {"KUBECONFIG": str(folder / "none")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    finally:
        for one in closed:
            one.chmod(0o700)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert {one["what"] for one in report["unseen"]} == {
        "cluster",
        "ledger",
        "container runtime",
        "registration sockets",
        "health",
    }
    assert report["lookedAt"] == ["kernel driver", "hardware"]


CONTAINERD = "etc/containerd/config.toml"
K3S = f"var/lib/rancher/k3s/agent/{CONTAINERD}"


@pytest.mark.parametrize(
    ("files", "runtime", "is_on", "folders"),
    [
        ({CONTAINERD: "version = 2\n"}, "containerd", None, ("/etc/cdi", "/var/run/cdi")),
        (
            {K3S: '[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = true\n'},
            "containerd",
            True,
            ("/etc/cdi", "/var/run/cdi"),
        ),
        (
            {CONTAINERD: '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\ncdi_spec_dirs = ["/x"]\n'},
            "containerd",
            False,
            ("/x",),
        ),
        (
            {
                CONTAINERD: 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
                "etc/containerd/conf.d/10.toml": '[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = true\n',
            },
            "containerd",
            True,
            ("/etc/cdi", "/var/run/cdi"),
        ),
        ({"etc/crio/crio.conf.d/10.conf": '[crio.runtime]\ncdi_spec_dirs = ["/y"]\n'}, "CRI-O", True, ("/y",)),
    ],
)
def test_runtimes_are_read_from_their_files(tmp_path, files, runtime, is_on, folders):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    [found] = read_runtimes(tmp_path)
    assert (found.runtime, found.is_cdi_on, found.folders, found.fault) == (runtime, is_on, folders, "")


def test_a_configuration_that_is_no_toml_is_a_fault(tmp_path):
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / CONTAINERD).write_text("][")
    assert read_runtimes(tmp_path)[0].fault


SECRET = "s3cr3t-value"


def test_a_bundle_holds_the_evidence_and_nothing_that_is_a_secret(tmp_path):
    pod = e.pod_of("p", claim="c")
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET}
    pod["spec"]["containers"] = [{"name": "main", "env": [{"name": "TOKEN", "value": SECRET}], "args": [SECRET]}]
    node = e.node_wire()
    node["status"]["addresses"] = [{"address": SECRET}]
    device = {"name": "d", "attributes": {"serial": {"string": SECRET}}}
    config = {"opaque": {"driver": "other.example.com", "parameters": {"password": SECRET}}}
    claim = e.claim_of("c", devices={"requests": [], "config": [config]})
    bystander = e.pod_of("elsewhere")
    cluster = e.cluster(pods=[pod, bystander], nodes=[node], slices=[e.slice_of([device])], claims=[claim])
    file = tmp_path / "bundle.tar.gz"
    write_bundle(file, examine(cluster, e.node(), NOW), cluster, e.node())
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        texts = {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}
    assert not [name for name, text in texts.items() if SECRET in text or "elsewhere" in text]
    assert json.loads(texts["dra-driver-bundle/report.json"])["lookedAt"]
    assert json.loads(texts["dra-driver-bundle/cluster/pods.json"])[0]["status"]["phase"] == "Running"
    assert json.loads(texts["dra-driver-bundle/node/rows.json"])[0]["uid"] == "uid-c"


def test_a_bundle_that_cannot_be_written_is_an_error_of_the_node(tmp_path):
    with pytest.raises(NodeError, match="can't be written"):
        write_bundle(tmp_path / "no/such/folder", examine(None, None, NOW), None, None)


@pytest.mark.parametrize(("vendor", "number"), [("amd", "0x1002"), ("intel", "0x8086")])
def test_the_driver_of_another_vendors_gpus_is_read_and_a_virtual_function_may_have_none(tmp_path, vendor, number):
    node = FakeNode(tmp_path)
    node.add_gpu("0000:05:00.0", driver="vfio-pci", vendor=number)
    node.add_gpu("0000:05:02.0", driver=None, vendor=number, physfn="0000:05:00.0")
    node.add_gpu("0000:41:00.0", driver="nvidia")
    assert read_kernel_driver(node.roots, tmp_path, vendor).bound == {"0000:05:00.0": "vfio-pci"}
