import os

import pytest

from dra_driver.kube.kubeconfig import StaticToken, TokenFile


def test_a_token_file_is_read_again_after_a_minute_and_not_before(tmp_path):
    now = [1000.0]
    path = tmp_path / "token"
    path.write_text("one")
    source = TokenFile(str(path), clock=lambda: now[0])
    assert source.authorization() == "Bearer one"
    path.write_text("two")
    now[0] += 59.0
    assert source.authorization() == "Bearer one"
    now[0] += 1.0
    assert source.authorization() == "Bearer two"


def test_a_refused_token_is_read_again_at_once_and_reread_returns_whether_it_changed(tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    source = TokenFile(str(path))
    source.authorization()
    assert source.reread() is False
    path.write_text("two")
    assert source.reread() is True
    assert source.authorization() == "Bearer two"


def test_the_last_token_is_used_while_the_file_is_gone_or_empty(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    source = TokenFile(str(path))
    source.authorization()
    path.write_text("")
    source.reread()
    assert source.authorization() == "Bearer one"
    path.unlink()
    source.reread()
    assert source.authorization() == "Bearer one"


@pytest.mark.parametrize("content", ["a\nb", "a b", "\u00e9", "x" * (1 << 21), "\0"])
def test_what_is_not_a_token_is_never_sent(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    assert TokenFile(str(path), fallback="last").authorization() == "Bearer last"


def test_a_token_file_that_never_ends_does_not_block_the_caller(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/zero", str(tmp_path)):
        assert TokenFile(path, fallback="last").authorization() == "Bearer last"


def test_no_token_means_no_header():
    assert StaticToken().authorization() == ""
