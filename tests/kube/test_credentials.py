"""Credentials: of a pod, from a folder like the kubelet's, and through the real `kubernetes` package."""

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dra_driver.base.errors import InputError, NodeError
from dra_driver.kube.credentials import load_credentials


@pytest.fixture
def service_account(tmp_path, monkeypatch):
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("pod-token")
    ca.write_text("not empty")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return {"token_file": str(token), "ca_file": str(ca)}


def test_in_a_pod_the_service_account_is_used(service_account):
    loaded = load_credentials(None, **service_account)
    assert loaded.server == "https://[fd00::1]:443"
    assert loaded.tls.ca_file == service_account["ca_file"]
    assert loaded.tokens.authorization() == "Bearer pod-token"


def test_in_a_pod_a_refused_token_is_read_again_at_once(service_account, tmp_path):
    loaded = load_credentials("", **service_account)
    loaded.tokens.authorization()
    assert loaded.tokens.reread() is False
    (tmp_path / "token").write_text("rotated")
    assert loaded.tokens.reread() is True
    assert loaded.tokens.authorization() == "Bearer rotated"


def test_in_a_pod_the_last_token_is_used_while_the_file_is_gone(service_account, tmp_path):
    loaded = load_credentials("", **service_account)
    loaded.tokens.authorization()
    (tmp_path / "token").unlink()
    loaded.tokens.reread()
    assert loaded.tokens.authorization() == "Bearer pod-token"


def test_in_a_pod_an_ipv4_address_has_no_brackets(service_account, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert load_credentials(None, **service_account).server == "https://10.96.0.1:6443"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files, env: files["token"].unlink(), "token can't be read: No such file"),
        (lambda files, env: files["ca"].unlink(), "ca.crt can't be read: No such file"),
        (lambda files, env: files["token"].write_text("\n"), "token is empty"),
        (lambda files, env: files["ca"].write_text(""), "ca.crt is empty"),
        (lambda files, env: env.setenv("KUBERNETES_SERVICE_PORT", "tcp://10.0.0.1:443"), "is not a port"),
        (lambda files, env: env.setenv("KUBERNETES_SERVICE_PORT", "99999999"), "is not a port"),
        (lambda files, env: env.setenv("KUBERNETES_SERVICE_HOST", ""), "are not set"),
    ],
    ids=["no token", "no CA", "empty token", "empty CA", "a URL as port", "a port out of range", "no host"],
)
def test_a_service_account_that_lacks_something_is_an_error_that_says_what(spoil, said, service_account, monkeypatch):
    spoil({"token": Path(service_account["token_file"]), "ca": Path(service_account["ca_file"])}, monkeypatch)
    with pytest.raises(NodeError, match=said) as caught:
        load_credentials(None, **service_account)
    assert caught.value.code == "node.no-credentials"
    assert "pod-token" not in str(caught.value)


def test_outside_a_pod_the_error_says_which_flag_to_set(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NodeError) as caught:
        load_credentials(None)
    assert caught.value.code == "node.no-credentials"
    assert "--kubeconfig" in caught.value.hint


def exec_kubeconfig(folder, script: str) -> str:
    program = folder / "give-token"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"exec": plugin}}],
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return str(path)


def test_an_exec_user_gets_its_token_from_its_program_and_a_log_line_says_so(tmp_path, caplog):
    answer = {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": "from-program"},
    }
    path = exec_kubeconfig(tmp_path, f"print({json.dumps(json.dumps(answer))})")
    with caplog.at_level(logging.INFO):
        loaded = load_credentials(path)
    assert loaded.tokens.authorization() == "Bearer from-program"
    assert "kubeconfig needs the official loader" in caplog.text


def test_an_exec_user_whose_program_fails_has_no_credentials(tmp_path):
    loaded = load_credentials(exec_kubeconfig(tmp_path, "raise SystemExit(1)"))
    assert loaded.tokens.authorization() == ""  # the official loader logs the failure and goes on


def test_a_kubeconfig_that_the_official_loader_refuses_is_bad_input(tmp_path):
    path = exec_kubeconfig(tmp_path, "")
    config = json.loads((tmp_path / "config").read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = "/nowhere/ca.crt"
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(InputError, match="provides no credentials"):
        load_credentials(path)


def run_fresh(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_in_a_pod_kubernetes_is_never_imported(service_account):
    output = run_fresh(
        f"""
        import sys, json
        from dra_driver.kube import api
        from dra_driver.kube.credentials import load_credentials
        api.KubeApi(load_credentials(None, **{service_account!r}))
        heavy = ("requests", "oauthlib", "websocket", "yaml", "pydantic", "aiohttp", "kubernetes")
        print(json.dumps([name for name in sys.modules if name.partition(".")[0] in heavy]))
        """,
        **IN_CLUSTER,
    )
    assert output.strip() == "[]"


def test_a_static_kubeconfig_in_json_imports_neither_kubernetes_nor_yaml(tmp_path):
    path = tmp_path / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "a", "user": {"token": "t"}}],
            }
        )
    )
    output = run_fresh(
        f"""
        import sys
        from dra_driver.kube import api
        from dra_driver.kube.credentials import load_credentials
        api.KubeApi(load_credentials({str(path)!r}))
        print([name for name in ("kubernetes", "yaml", "requests") if name in sys.modules])
        """
    )
    assert output.strip() == "[]"
