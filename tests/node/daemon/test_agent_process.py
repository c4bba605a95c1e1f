"""The real agent process on a stand-in cluster. Not covered here: prepare's own rules (tests/node)."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import NODE, stage
from tests.support.waiting import until

HEAVY = {"pydantic", "click", "rich", "celpy", "requests", "oauthlib", "websocket", "starlette", "aiohttp", "ruamel"}


@pytest.fixture
def here():
    with stage() as it:
        yield it


def test_the_agent_registers_publishes_and_ends_cleanly(here):
    agent = here.start("simulated:dgx-h100")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: len(here.devices()) == 8, "8 devices")
    (published,) = here.api.items(SLICES)
    assert published["spec"]["pool"]["name"] == f"{NODE}/{NVIDIA_DRIVER}"
    assert published["metadata"]["ownerReferences"][0]["name"] == NODE
    assert here.end(agent) == 0
    assert not list(here.kubelet.registrar_dir.iterdir()), "registration socket left"
    assert not list((here.kubelet.plugins_dir / NVIDIA_DRIVER).glob("*.sock")), "service socket left"
    assert len(here.devices()) == 8, "the next instance adopts the slices"


def test_heavy_modules_are_not_imported(here):
    agent = here.start("simulated:dgx-h100", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    until(here.devices, "devices")
    here.end(agent)
    imported = set(re.findall(r"\|\s+([\w.]+)$", here.log(), re.MULTILINE))
    assert "grpc" in imported
    heavy = HEAVY | {"prometheus_client", "http.server"}
    assert not {name for name in imported if {name, name.partition(".")[0]} & heavy}
    assert "kubernetes.client.models" not in imported


def test_an_agent_with_files_that_people_write_reads_them_by_pydantic_within_80_mib(here):
    (here.folder / "sharing.yaml").write_text("version: rules/v1\nrules: [{memory: {default: 10Gi}}]\n")
    (here.folder / "health.yaml").write_text("version: health/v1\nfaults: {thermal: {effect: NoSchedule}}\n")
    files = (f"--sharing-config={here.folder}/sharing.yaml", f"--health-policy={here.folder}/health.yaml")
    agent = here.start("simulated:dgx-h100", *files, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    until(here.devices, "devices")
    resident = resident_kib(agent)
    here.end(agent)
    imported = set(re.findall(r"\|\s+([\w.]+)$", here.log(), re.MULTILINE))
    assert {name for name in imported if name in HEAVY} == {"pydantic"}
    assert resident <= 80 << 10, f"{resident >> 10} MiB"


def test_a_node_without_gpu_and_claims_idles_and_imports_neither_grpc_nor_kubernetes(here, tmp_path):
    roots = [f for name in ("sysfs", "proc", "dev") for f in (f"--{name}-root", str(tmp_path))]
    agent = here.start("nvidia", *roots, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    until(lambda: "idle until one appears" in here.log(), "the agent to say that it idles")
    assert here.end(agent) == 0
    imported = set(re.findall(r"\|\s+([\w.]+)$", here.log(), re.MULTILINE))
    assert not {
        name for name in imported if name.partition(".")[0] in HEAVY | {"grpc", "kubernetes", "urllib3", "pynvml"}
    }
    assert not list(here.kubelet.registrar_dir.iterdir())
    assert here.api.items(SLICES) == []


def resident_kib(agent):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{agent.pid}/status").read_text())[1])


def fetch(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_agent_that_idles_answers_the_probes_of_the_kubelet_within_25_mib(here, tmp_path):
    roots = [f for name in ("sysfs", "proc", "dev") for f in (f"--{name}-root", str(tmp_path))]
    environment = {"PYTHONPROFILEIMPORTTIME": "1"}  # a process of its own, whose memory is its own
    agent = here.start("nvidia", *roots, "--metrics-address", "127.0.0.1:0", environment=environment)
    until(lambda: "idle until one appears" in here.log(), "the agent to say that it idles")
    port = int(re.search(r"status page open .*:(\d+)", here.log())[1])
    assert fetch(port, "/healthz")[0] == 200
    assert fetch(port, "/readyz")[0] == 200, "an idle node needs nothing more"
    assert "\ndra_driver_registered 0\n" in fetch(port, "/metrics")[1]
    assert resident_kib(agent) <= 25 << 10
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    until(lambda: fetch(port, "/readyz")[0] == 503, "the agent at work, on the same page")
    assert here.end(agent) == 0


def test_slices_come_back_after_the_kubelet_wiped_them(here):
    here.start("simulated:dgx-h100")
    until(lambda: len(here.devices()) == 8, "8 devices")
    here.kubelet.restart()
    until(lambda: len(here.devices()) == 8, "8 devices again")


def test_one_of_two_instances_publishes_and_the_newer_takes_over(here):
    first = here.start("simulated:dgx-h100", "--pod-uid", "0" * 36)
    until(lambda: len(here.devices()) == 8, "8 devices")
    here.start("simulated:l40s", "--pod-uid", "1" * 36)
    here.kubelet.wait_registered(NVIDIA_DRIVER, instances=2)
    until(lambda: "hardware scanned" in here.log(1), "the newer one's scan")
    (before,) = here.api.items(SLICES)
    assert before["metadata"]["generation"] == 1, "the newer one wrote although the older has the role"
    assert here.end(first) == 0
    until(lambda: here.devices() and here.api.items(SLICES)[0]["metadata"]["uid"], "slices")
    until(lambda: "role gained" in here.log(1), "the newer one's role")
    until(
        lambda: all(
            d["attributes"]["productName"] == {"string": "NVIDIA L40S"}
            for s in here.api.items(SLICES)
            for d in s["spec"]["devices"]
        ),
        "the newer one's devices",
    )


def test_the_sockets_of_a_killed_instance_are_removed_by_the_other(here):
    first = here.start("simulated:t4", "--pod-uid", "0" * 36)
    until(here.devices, "devices")
    second = here.start("simulated:t4", "--pod-uid", "1" * 36)
    here.kubelet.wait_registered(NVIDIA_DRIVER, instances=2)
    folder = here.kubelet.plugins_dir / NVIDIA_DRIVER
    here.end(first, signal.SIGKILL)
    until(lambda: not list(here.kubelet.registrar_dir.glob("*000-reg.sock")), "the killed one's registration to go")
    until(lambda: [path.name for path in folder.glob("*.sock")] == [f"dra-{'1' * 36}.sock"], "its service too")
    assert here.end(second) == 0
    assert not folder.exists()


def test_the_status_page_is_ready_once_slices_are_published_and_says_why_it_is_not(here):
    here.start("simulated:dgx-h100", "--metrics-address", "127.0.0.1:0")
    until(here.devices, "devices")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    port = int(re.search(r"status page open .*:(\d+)", here.log())[1])

    def is_ready():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60).status == 200
        except urllib.error.HTTPError as error:
            error.close()
            return False

    until(is_ready, "ready")
    here.api.faults.fail_next(403, count=1000, method="POST", contains="resourceslices")
    for found in here.api.items(SLICES):
        here.api.delete(SLICES, found["metadata"]["name"])
    until(lambda: "injected by a test: Forbidden" in fetch(port, "/readyz")[1], "the reason on the page")
    assert fetch(port, "/readyz")[1].startswith("no slices published yet: POST /apis/resource.k8s.io/v1/resourceslices")
    here.api.faults.clear()
    until(is_ready, "ready again")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert 'dra_driver_devices{type="gpu"} 8.0' in text
    assert 'dra_driver_slice_writes_total{verb="create"} 2.0' in text


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--node-name", "Not A Node"], 2, "node name"),
        (["--hardware", "quantum"], 2, "--hardware"),
        (["--hardware", "simulated:nowhere"], 3, "nowhere"),
        (["--log-format", "xml"], 2, "text, json"),
        (["--metrics-address", "9400"], 2, "HOST:PORT"),
        (["--kubeconfig", "/does/not/exist"], 3, "/does/not/exist"),
        (["--pod-uid", "../../elsewhere"], 2, "pod UID"),
        (["--kubelet-registrar-directory-path", "/dev/null"], 5, "/dev/null"),
        (["--kubelet-plugins-directory-path", "/dev/null"], 5, "/dev/null"),
        (["--no-such-flag"], 2, "unrecognized arguments: --no-such-flag"),
        (["--node-name", ".".join(["n" * 60] * 4)], 2, "238 characters"),
    ],
)
def test_a_wrong_flag_ends_the_agent_with_a_status_and_a_message_and_no_traceback(here, flags, status, said):
    agent = here.start("simulated:dgx-h100", *flags)
    assert agent.wait(60) == status
    assert said in here.log()
    assert "Traceback" not in here.log()


def test_a_json_log_is_json_to_its_last_line_even_when_the_agent_can_t_start(here):
    agent = here.start("simulated:dgx-h100", "--log-format", "json", "--kubeconfig", "/does/not/exist")
    assert agent.wait(60) == 3
    last = [json.loads(line) for line in here.log().splitlines()][-1]
    assert (last["level"], last["code"]) == ("error", "input.kubeconfig")
    assert "/does/not/exist" in last["err"]


@pytest.mark.parametrize("flags", [["--no-such-flag"], ["--node-name"], ["--node-name", "Not A Node"]])
def test_a_wrong_flag_is_reported_in_json_with_the_json_log_format(here, flags):
    agent = here.start("simulated:dgx-h100", "--log-format=json", *flags)
    assert agent.wait(60) == 2
    (line,) = [json.loads(line) for line in here.log().splitlines()]
    assert line["code"] in {"usage.flags", "usage.node-name"}


def test_a_role_file_that_can_t_be_opened_ends_the_agent_with_its_name_and_no_traceback(here):
    (here.kubelet.plugins_dir / NVIDIA_DRIVER / "role.lock").mkdir(parents=True)
    agent = here.start("simulated:dgx-h100")
    assert agent.wait(60) == 5
    assert "role.lock" in here.log()
    assert "Traceback" not in here.log()


def test_an_agent_that_waits_for_its_sharing_rules_can_be_ended(here):
    os.mkfifo(here.folder / "rules")
    agent = here.start("simulated:dgx-h100", "--sharing-config", str(here.folder / "rules"))
    until(lambda: "agent starting" in here.log(), "the agent to start")
    assert here.end(agent) == 0


def test_a_flag_overrides_its_environment_variable(here):
    here.start("simulated:dgx-h100", environment={"DRIVER_NAME": "other.example.com", "NODE_NAME": "ignored"})
    here.kubelet.wait_registered("other.example.com")
    until(lambda: here.api.items(SLICES), "slices")
    assert here.api.items(SLICES)[0]["spec"]["nodeName"] == NODE


def test_an_agent_whose_service_socket_was_removed_restarts_its_process(here):
    agent = here.start("simulated:dgx-h100")
    here.kubelet.wait_registered(NVIDIA_DRIVER).endpoint.unlink()
    until(lambda: "restarting the process" in here.log(), "a new start")
    until((here.kubelet.plugins_dir / NVIDIA_DRIVER / "dra.sock").exists, "a new socket")
    until(lambda: here.log().count("registered with the kubelet") == 2, "a new registration")
    assert here.end(agent) == 0


def test_a_killed_agent_leaves_nothing_that_hinders_the_next(here):
    first = here.start("simulated:dgx-h100")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(here.devices, "devices")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    here.start("simulated:dgx-h100")
    until(lambda: "registered" in here.log(1), "registration of the second")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
