"""`dra-driver usage` without a Prometheus: pages of agents through the API server's proxy, with the user's rights."""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.kube.paths import CLAIMS, NODES, SLICES
from dra_driver.tools.main import run
from dra_driver.tools.usage.from_agents import NodeKind, agent_pages, node_kinds
from dra_driver.tools.world.profiles import FleetOffer
from dra_driver.tools.world.world import World, add_profiles
from tests.support.metering.usage_week import H100, WEEK_H, Line, week


def pod(name, node, *, port=9400, phase="Running", env=()):
    ports = [{"name": "health", "containerPort": 9401}, *([{"name": "metrics", "containerPort": port}] if port else [])]
    container = {"name": "agent", "ports": ports, "env": [{"name": one, "value": "x"} for one in env]}
    metadata = {"name": name, "namespace": "gpus", "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}


def page(node, hour=WEEK_H):
    """Return the page of an agent of the week at a moment: the series of its own node."""
    lines = [
        line for line in week() if node in (line.labels.get("node"), line.labels.get("dra_pool_name", "").split("/")[0])
    ]
    rows = [(line, line.at(hour)) for line in lines]
    return "# HELP x y\n" + "".join(f"{text(line)} {value}\n" for line, value in rows if value is not None)


def text(line: Line) -> str:
    return line.name + "{" + ",".join(f'{name}="{value}"' for name, value in line.labels.items()) + "}"


class ApiDouble:
    """An API server that lists pods and nodes, and serves pages of pods as by its proxy."""

    def __init__(self):
        self.pods, self.pages, self.nodes, self.asked = [], {}, [], []
        self.slices, self.claims = [], []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                double.asked.append((path, query))
                status, body = double.answer(path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path):
        lists = {"/api/v1/pods": self.pods, "/api/v1/nodes": self.nodes, SLICES: self.slices, CLAIMS: self.claims}
        if path == "/version":
            return 200, b'{"major": "1", "minor": "36", "gitVersion": "v1.36.0"}'
        if path in lists:
            return 200, json.dumps(
                {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": lists[path]}
            ).encode()
        for name, found in self.pages.items():
            if path == f"/api/v1/namespaces/gpus/pods/{name}:9400/proxy/metrics":
                return 200, found
        return 403, b'{"kind":"Status","message":"pods \\"x\\" is forbidden: cannot get pods/proxy"}'

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api():
    double = ApiDouble()
    yield double
    double.stop()


@pytest.fixture
def usage(api, tmp_path, capsys):
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": api.url}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))

    def ask(*more):
        status = run(["usage", "--kubeconfig", str(tmp_path / "kubeconfig"), *more])
        return status, *capsys.readouterr()

    return ask


def test_hours_come_from_every_agent_and_the_headline_names_their_beginning(api, usage):
    for node in ("h100-0", "mig-0", "a100-00"):
        api.pods.append(pod(f"agent-{node}", node))
        api.pages[f"agent-{node}"] = page(node).encode()
    status, out, _ = usage("--by", "namespace", "-o", "json")
    found = {row["name"]: row["allocatedHours"] for row in json.loads(out)["rows"]}
    assert status == ExitCode.OK
    assert found == pytest.approx({"train": 864, "web": 52 + 168, "lab": 83, "ci": 2})
    assert json.loads(out)["total"]["unclaimedHours"] == pytest.approx(8 * 60)
    _, out, _ = usage("--by", "claim")
    assert "the agents, since they began to count" in out
    assert "web/part" in out  # the only claim that has not ended
    assert any(query.get("labelSelector") for path, query in api.asked if path == "/api/v1/pods")


def test_agents_that_can_t_be_asked_are_named_and_the_others_count(api, usage):
    for node in ("h100-0", "mig-0"):
        api.pods.append(pod(f"agent-{node}", node))
    api.pages["agent-mig-0"] = page("mig-0").encode()
    status, out, err = usage("-o", "json")
    assert status == ExitCode.OK
    assert "1 of 2 agents could not be asked: h100-0" in err
    assert json.loads(out)["notes"]
    api.pages.clear()
    status, _, err = usage()
    assert status == ExitCode.ENVIRONMENT
    assert "[api.agents]" in err
    assert "pods/proxy" in err


@pytest.mark.parametrize("body", [b"\xff\xfe", b"dra_allocated_seconds_total{", b"dra_x{a=\"b\" 1\n", b"dra_x one\n",
                                  b"dra_x{" + b'a="b",' * 200 + b"} 1\n", b"dra_x 1\n" * 200_001])  # fmt: skip
def test_an_invalid_page_is_an_error_of_that_agent_alone(api, usage, body):
    api.pods += [pod("bad", "n1"), pod("agent-mig-0", "mig-0")]
    api.pages |= {"bad": body, "agent-mig-0": page("mig-0").encode()}
    status, out, err = usage("-o", "json")
    assert status == ExitCode.OK
    assert "1 of 2 agents could not be asked: n1" in err
    assert json.loads(out)["total"]["allocatedHours"] == pytest.approx(168)


def test_a_page_with_series_of_another_node_is_refused(api, usage):
    api.pods += [pod("wrong", "h100-0"), pod("agent-mig-0", "mig-0")]
    api.pages |= {"wrong": page("h100-0").encode() + page("mig-0").encode(), "agent-mig-0": page("mig-0").encode()}
    status, out, err = usage("-o", "json")
    assert status == ExitCode.OK
    assert "1 of 2 agents could not be asked: h100-0" in err
    assert "names the pool 'mig-0/gpu.nvidia.com', which is not one of its node" in " ".join(err.split())
    assert json.loads(out)["total"]["allocatedHours"] == pytest.approx(168)


def test_pages_have_a_limit_of_size_and_of_rows_each_and_together(api, usage, monkeypatch):
    api.pods += [pod("large", "n1"), pod("many", "n2"), pod("agent-mig-0", "mig-0")]
    rows = (f'dra_claim_allocated_seconds_total{{dra_claim_uid="{n}",namespace="x"}} 1\n' for n in range(5000))
    api.pages |= {
        "large": b"#" * ((8 << 20) + 1),
        "many": "".join(rows).encode(),
        "agent-mig-0": page("mig-0").encode(),
    }
    status, out, err = usage("-o", "json")
    assert status == ExitCode.OK
    assert "2 of 3 agents could not be asked: n1, n2" in err
    assert json.loads(out)["total"]["allocatedHours"] == pytest.approx(168)
    monkeypatch.setattr("dra_driver.tools.usage.from_agents.ALL_ROWS", 1)
    status, _, err = usage("-o", "json")
    assert status == ExitCode.ENVIRONMENT


def test_agents_that_are_not_reached_within_the_time_for_all_are_named(api, usage, monkeypatch):
    api.pods += [pod(f"agent-{number}", f"n{number}") for number in range(3)]
    monkeypatch.setattr("dra_driver.tools.usage.from_agents.ALL_SECONDS", 0.0)
    status, _, err = usage("-o", "json")
    assert status == ExitCode.ENVIRONMENT
    assert "0 s were over" in err
    assert not [path for path, _ in api.asked if "proxy" in path]


LYING = "node-1"


def created(hours, **metadata):
    """Return the metadata of an object that exists for so many hours at this moment, not since tests were collected."""
    at = (datetime.now(UTC) - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"resourceVersion": "1", "creationTimestamp": at, **metadata}


def reported(seconds, *, namespace="lab", name="train", uid="u-1", total=0.0, free=0.0):
    """Return the page of an agent that reports these seconds of one claim, of all claims and without claims."""
    of_device = f'device_class="gpu",model="{H100}",profile="gpu"'
    of_claim = f'dra_claim_uid="{uid}",dra_claim_namespace="{namespace}",dra_claim_name="{name}"'
    pool = f'dra_pool_name="{LYING}/gpu.nvidia.com"'
    claim = f'{of_claim},{of_device},{pool},namespace="{namespace}"'
    return "".join(
        f"{row}\n"
        for row in (
            f"dra_claim_allocated_seconds_total{{{claim}}} {seconds}",
            f"dra_claim_busy_seconds_total{{{claim}}} {seconds}",
            f"dra_claim_measured_seconds_total{{{claim}}} {seconds}",
            f'dra_allocated_seconds_total{{namespace="{namespace}",{of_device}}} {total or seconds}',
            f'dra_unclaimed_seconds_total{{{pool},model="{H100}"}} {free}',
        )
    ).encode()


@pytest.fixture
def lying(api):
    """A node of four GPUs that exists for 100 hours, and a claim of ten hours with two of them."""
    api.pods = [pod("agent", LYING)]
    api.nodes = [{"metadata": created(100, name=LYING, uid="n")}]
    pool = {"name": LYING, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(4)]
    spec = {"driver": "gpu.nvidia.com", "pool": pool, "nodeName": LYING, "devices": devices}
    api.slices = [{"metadata": created(1, name="s", uid="s"), "spec": spec}]
    results = [{"request": "r", "driver": "gpu.nvidia.com", "pool": LYING, "device": f"gpu-{n}"} for n in range(2)]
    status = {"allocation": {"devices": {"results": results}}}
    api.claims = [{"metadata": created(10, namespace="lab", name="train", uid="u-1"), "spec": {}, "status": status}]

    def report(**more):
        api.pages = {"agent": reported(**more)}

    return report


def hours_of(usage, by):
    status, out, err = usage("--by", by, "-o", "json")
    assert status == ExitCode.OK, err
    return {row["name"]: row["allocatedHours"] for row in json.loads(out)["rows"] if row["allocatedHours"]}, err


def test_what_can_be_true_is_reported_as_it_is_and_without_a_note(lying, usage):
    lying(seconds=2 * 10 * 3600, total=4 * 90 * 3600, free=4 * 10 * 3600)
    assert hours_of(usage, "claim") == ({"lab/train": pytest.approx(20)}, "")
    assert hours_of(usage, "namespace")[0] == {"lab": pytest.approx(360)}


def test_a_claim_has_no_more_hours_than_its_devices_since_it_exists(lying, usage):
    lying(seconds=1e9)
    found, err = hours_of(usage, "claim")
    assert found == {"lab/train": pytest.approx(20, abs=0.3)}
    assert "report more than can be true according to the API server, which was cut: node-1: " in err
    assert "claim lab/train from 277,777.8 h to 20.2 h" in err


def test_a_claim_that_does_not_exist_any_more_has_no_more_hours_than_the_pool(lying, usage):
    lying(seconds=1e9, name="gone", uid="u-2")
    assert hours_of(usage, "claim")[0] == {"lab/gone": pytest.approx(400, abs=0.5)}


@pytest.mark.parametrize("value", [1e9, 1e308])
def test_a_node_gives_away_no_more_hours_than_its_gpus_had_since_it_exists(lying, usage, value):
    lying(seconds=3600, total=value)
    found, err = hours_of(usage, "namespace")
    assert sum(found.values()) <= 441
    assert "all GPUs from" in err
    lying(seconds=3600, free=1e9)
    _, out, _ = usage("-o", "json")
    assert json.loads(out)["total"]["unclaimedHours"] <= 441


def test_hours_are_not_charged_to_another_claim_with_the_uid_of_one_that_exists(lying, usage):
    lying(seconds=3600, namespace="rival", name="train")
    found, err = hours_of(usage, "claim")
    assert found == {}
    assert "claim rival/train, whose UID is that of lab/train" in err


def test_without_the_right_to_list_the_report_is_not_cut_and_says_so(lying, usage, api, monkeypatch):
    lying(seconds=1e9)
    answer = api.answer
    monkeypatch.setattr(api, "answer", lambda path: answer(path if path not in {CLAIMS, NODES} else "/forbidden"))
    found, err = hours_of(usage, "claim")
    assert found == {"lab/train": pytest.approx(1e9 / 3600)}
    assert "what agents report is not compared with the claims: " in err
    assert "what agents report is not compared with the nodes: " in err


def test_only_running_agents_with_a_metrics_port_are_asked_and_by_https_if_they_have_a_certificate():
    pods = [
        pod("a", "n1"),
        pod("b", "n2", phase="Pending"),
        pod("c", "n3", port=0),
        pod("d", "n4", env=["METRICS_CERTIFICATE"]),
    ]
    assert [one.path.split("/pods/")[1] for one in agent_pages(pods)] == [
        "a:9400/proxy/metrics",
        "https:d:9400/proxy/metrics",
    ]


def test_nodes_are_priced_by_their_type_and_by_whether_they_are_spot(api, usage, tmp_path):
    kind = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    labels = {
        "mig-0": kind | {"karpenter.sh/capacity-type": "spot"},
        "b": kind | {"eks.amazonaws.com/capacityType": "SPOT"},
        "c": {"cloud.google.com/gke-spot": "true"},
        "d": kind,
    }
    api.nodes = [{"metadata": {"name": name, "uid": name, "labels": found}} for name, found in labels.items()]
    assert node_kinds(api.nodes) == {
        "mig-0": NodeKind("p5.48xlarge", "spot"), "b": NodeKind("p5.48xlarge", "spot"), "c": NodeKind("", "spot"),
        "d": NodeKind("p5.48xlarge", "on-demand"),
    }  # fmt: skip
    api.pods, api.pages = [pod("agent-mig-0", "mig-0")], {"agent-mig-0": page("mig-0").encode()}
    row = f'{{model: {H100}, instanceType: p5.48xlarge, capacity: spot, perHour: "2"}}'
    (tmp_path / "p.yaml").write_text(f"version: prices/v1\nprices: [{row}, {{model: '*', perHour: '9'}}]\n")
    _, out, _ = usage("--by", "node", "--prices", str(tmp_path / "p.yaml"), "--node-prices", "-o", "json")
    assert json.loads(out)["total"]["cost"] == pytest.approx(168 * 0.5 * 2)


def test_what_if_prints_how_many_gpus_of_the_cluster_the_advice_would_free(api, usage):
    world = World(offer=FleetOffer(is_on_demand=True, minor=36))
    add_profiles(world, ["dgx-h100"])
    api.slices = [one | {"metadata": one["metadata"] | {"uid": "u", "resourceVersion": "1"}}
                  for one in world.of("ResourceSlice")]  # fmt: skip
    wires = []
    for name, device in (("small", "gpu-0000-1b-00-0"), ("short", "gpu-0000-43-00-0")):
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "dgx-h100-1", "device": device}
        wires.append({
            "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {}, "status": {"allocation": {"devices": {"results": [result]}}},
        })  # fmt: skip
    api.claims = wires
    api.pods, api.pages = [pod("a", "h100-0")], {"a": page("h100-0", hour=47).encode()}
    status, out, err = usage("--by", "claim", "--what-if")
    assert status == ExitCode.OK, err
    assert "lab/small: gpu \u2192 1g.10gb" in out
    assert "With this change, 0 GPUs would become free." in out  # one claim alone still takes a part of a GPU
    _, out, _ = usage("--by", "claim", "--what-if", "-o", "json")
    assert json.loads(out)["whatIf"] == {"changes": 1, "gpus": 0, "nodes": [], "unplaced": []}
