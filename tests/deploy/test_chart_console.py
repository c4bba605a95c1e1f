"""The console in the chart: its rights, how it is reached, and which values exclude each other."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.chart import objects, render

ON = "console.enabled=true"
TLS = "console.tls.secret=console-tls"


def found(helm: str, *values: str) -> dict[str, dict]:
    """Return the objects of the console, by their kinds."""
    every = objects(render(helm, ON, *values))
    return {one["kind"]: one for one in every if one["metadata"]["name"] == "dra-driver-console"}


def env(deployment: dict) -> dict[str, str]:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_a_console_with_viewers_tokens_has_no_rights_and_no_token_of_its_own(helm: str) -> None:
    made = found(helm)
    assert made.keys() == {"ServiceAccount", "NetworkPolicy", "Deployment"}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert not [one for one in pod["volumes"] if "projected" in one or "secret" in one or "hostPath" in one]


def test_a_console_without_a_certificate_is_reached_only_by_port_forwarding(helm: str) -> None:
    made = found(helm)
    assert env(made["Deployment"])["ADDRESS"] == "127.0.0.1:8080"
    assert made["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress"]
    assert "ingress" not in made["NetworkPolicy"]["spec"]


def test_a_console_with_reviews_may_read_what_it_shows_and_write_only_reviews(helm: str) -> None:
    made = found(helm, "console.identity=review", TLS)
    rules = made["ClusterRole"]["rules"]
    assert not any("*" in rule["resources"] or "secrets" in rule["resources"] for rule in rules)
    writing = [rule["resources"] for rule in rules if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert writing == [["tokenreviews"], ["subjectaccessreviews"]]
    assert made["Service"]["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
    assert env(made["Deployment"])["ADDRESS"] == ":8443"


def test_the_certificate_of_the_console_has_the_names_of_its_hosts(helm: str) -> None:
    made = found(helm, "console.tls.issuerRef.name=corporate", "console.hosts={gpus.example.com}")
    assert made["Certificate"]["spec"]["dnsNames"][-1] == "gpus.example.com"
    assert env(made["Deployment"])["HOSTS"] == "dra-driver-console.dra-driver.svc gpus.example.com"


@pytest.mark.parametrize(
    "values",
    [
        (TLS, "console.tls.issuerRef.name=x"),
        (TLS, "console.identity=review", "console.proxy.configMap=authorities"),
        (TLS, "console.identity=review", "console.proxy.names={front}"),
        (TLS, "console.proxy.configMap=authorities", "console.proxy.names={front}"),
        ("console.identity=review", "console.proxy.configMap=authorities", "console.proxy.names={front}"),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_values_that_exclude_each_other_are_refused(helm: str, values: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        found(helm, *values)
    assert "(docs/console.md)" in refused.value.stderr
