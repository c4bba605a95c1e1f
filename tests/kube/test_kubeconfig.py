import base64
import json

import pytest

from dra_driver.base.errors import InputError
from dra_driver.kube.kubeconfig import read_kubeconfig


def write(folder, *, user=None, cluster=None, **changes):
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_server_has_no_trailing_slash_and_the_token_goes_into_the_header(tmp_path):
    credentials = read_kubeconfig(write(tmp_path, user={"token": "secret"}))
    assert credentials.server == "https://10.0.0.1:6443"
    assert credentials.tokens.authorization() == "Bearer secret"
    assert credentials.tokens.reread() is False


def test_yaml_is_read_like_json(tmp_path):
    path = tmp_path / "config"
    path.write_text(
        """
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: default}}
clusters:
- name: c
  cluster: {server: "http://localhost:8080", insecure-skip-tls-verify: true}
users:
- name: u
  user: {tokenFile: token}
"""
    )
    (tmp_path / "token").write_text("from-file\n")
    credentials = read_kubeconfig(str(path))
    assert credentials.tls is None
    assert credentials.tokens.authorization() == "Bearer from-file"


def test_relative_paths_start_at_the_folder_of_the_kubeconfig(tmp_path):
    path = write(
        tmp_path,
        cluster={"certificate-authority": "pki/ca.crt"},
        user={"client-certificate": "me.crt", "client-key": "/keys/me.key"},
    )
    tls = read_kubeconfig(path).tls
    assert tls.ca_file == str(tmp_path / "pki/ca.crt")
    assert (tls.cert_file, tls.key_file) == (str(tmp_path / "me.crt"), "/keys/me.key")


def test_inline_data_is_decoded_and_stays_out_of_the_repr(tmp_path):
    path = write(
        tmp_path,
        cluster={"certificate-authority-data": encoded("CA PEM"), "tls-server-name": "kubernetes"},
        user={"client-certificate-data": encoded("CERT"), "client-key-data": encoded("KEY PEM")},
    )
    tls = read_kubeconfig(path).tls
    assert (tls.ca_pem, tls.cert_pem, tls.key_pem, tls.server_name) == ("CA PEM", b"CERT", b"KEY PEM", "kubernetes")
    assert "KEY PEM" not in repr(tls)


def test_a_token_file_overrides_a_token_which_is_used_while_the_file_is_missing(tmp_path):
    path = write(tmp_path, user={"token": "old", "tokenFile": "token"})
    credentials = read_kubeconfig(path)
    assert credentials.tokens.authorization() == "Bearer old"
    (tmp_path / "token").write_text("new")
    assert credentials.tokens.reread() is True
    assert credentials.tokens.authorization() == "Bearer new"


@pytest.mark.parametrize("user", [{"exec": {"command": "aws"}}, {"auth-provider": {"name": "oidc"}}])
def test_users_with_a_program_or_a_provider_are_left_to_the_official_loader(tmp_path, user):
    assert read_kubeconfig(write(tmp_path, user=user)) is None


def test_a_context_without_a_user_is_anonymous(tmp_path):
    path = write(tmp_path, contexts=[{"name": "here", "context": {"cluster": "c"}}])
    assert read_kubeconfig(path).tokens.authorization() == ""


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"current-context": ""}, "current-context is empty"),
        ({"current-context": "gone"}, "contexts has no entry named 'gone'"),
        ({"clusters": []}, "clusters has no entry named 'c'"),
        ({"users": {"u": {}}}, "users is not a list"),
        ({"cluster": {"server": "10.0.0.1"}}, "clusters[c].cluster.server '10.0.0.1' is not an http or https URL"),
        ({"cluster": {"proxy-url": "http://p"}}, "clusters[c].cluster.proxy-url is not supported"),
        ({"user": {"username": "admin", "password": "x"}}, "users[u].user.username is not supported"),
        ({"user": {"as": "root"}}, "users[u].user.as is not supported"),
        ({"user": {"token": 7}}, "users[u].user.token is not a string"),
        ({"cluster": {"certificate-authority-data": "%%"}}, "certificate-authority-data is not base64"),
    ],
)
def test_what_we_cannot_honour_is_an_error_that_names_the_field(tmp_path, changes, fragment):
    with pytest.raises(InputError) as caught:
        read_kubeconfig(write(tmp_path, **changes))
    assert fragment in caught.value.message
    assert caught.value.code == "input.kubeconfig"


@pytest.mark.parametrize("text", ["{", "a: [", "- a\n", "\x00"])
def test_a_file_that_is_not_a_kubeconfig_is_an_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InputError, match=str(path)):
        read_kubeconfig(str(path))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="can't be read"):
        read_kubeconfig(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{b: " * 50_000, "{" + '"a":[' * 100_000])
def test_a_file_that_is_nested_too_deeply_is_an_error(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InputError, match="is not"):
        read_kubeconfig(str(path))


def test_a_list_of_files_is_read_as_one(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    (mine / "config").write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"tokenFile": "token"}}],
            }
        )
    )
    (mine / "token").write_text("mine")
    write(theirs, user={"token": "theirs"}, cluster={"certificate-authority": "ca.crt"}, **{"current-context": "else"})
    credentials = read_kubeconfig(f"{mine}/config:{tmp_path}/missing:{theirs}/kubeconfig")
    assert credentials.server == "https://10.0.0.1:6443"
    assert credentials.tokens.authorization() == "Bearer mine", "the first entry of a name wins"
    assert credentials.tls.ca_file == f"{theirs}/ca.crt", "a relative path starts at its own file's folder"


def test_a_list_of_files_that_are_all_missing_is_an_error(tmp_path):
    with pytest.raises(InputError, match="none of these files exists"):
        read_kubeconfig(f"{tmp_path}/a:{tmp_path}/b")


def test_a_list_of_one_file_is_that_file(tmp_path):
    path = write(tmp_path)
    assert read_kubeconfig(f"{path}:").server == read_kubeconfig(f":{path}").server == "https://10.0.0.1:6443"
