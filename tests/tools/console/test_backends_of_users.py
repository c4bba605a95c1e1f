"""Backends are counted by user: one account with many tokens, or a namespace of accounts, leaves room for others."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.server import running_server
from tests.support.waiting import until

ALL = [(one, "") for one in EVERYTHING]
VIEWERS = 4


def served(server, token):
    return server.ask(token, "summary").status == 200


def test_one_account_with_many_tokens_has_one_backend_and_the_latest_token_that_is_accepted_is_used(tmp_path):
    with GuardedApi() as api, ExitStack() as stack:
        fill(api)
        for number in range(8):
            api.add(f"mine-{number}", "mallory", *ALL)
        api.add("alice-token", "alice", *ALL)
        kubeconfig = str(api.write_kubeconfig(tmp_path / "config"))
        server = stack.enter_context(running_server(kubeconfig, "--viewers", str(VIEWERS)))
        for number in range(8):
            stack.enter_context(server.looked_at(authorization=f"Bearer mine-{number}"))
        until(lambda: server.claims("mine-7") >= {"mine", "theirs"})
        until(lambda: api.open_watches >= len(EVERYTHING) - 1)
        assert api.open_watches == len(EVERYTHING) - 1, "each token has watches of its own"
        for number in range(7):
            del api.users[f"mine-{number}"]
        found = server.ask("mine-7", "claim", "?namespace=team-a&name=mine")
        assert found.status == 200, "a token was used that the cluster does not accept any more"
        stack.enter_context(server.looked_at(authorization="Bearer alice-token"))
        until(lambda: served(server, "alice-token"))


def test_the_accounts_of_one_namespace_give_up_a_backend_when_somebody_else_comes(tmp_path):
    with GuardedApi() as api, ExitStack() as stack:
        fill(api)
        for number in range(VIEWERS):
            api.add(f"mine-{number}", f"system:serviceaccount:team-a:{number}", *ALL)
        for name in ("alice", "bob", "carol", "dave"):
            api.add(f"{name}-token", name, *ALL)
        kubeconfig = str(api.write_kubeconfig(tmp_path / "config"))
        server = stack.enter_context(running_server(kubeconfig, "--viewers", str(VIEWERS)))
        for number in range(VIEWERS):
            stack.enter_context(server.looked_at(authorization=f"Bearer mine-{number}"))
        for name in ("alice", "bob", "carol"):
            stack.enter_context(server.looked_at(authorization=f"Bearer {name}-token"))
            until(lambda name=name: served(server, f"{name}-token"))
        assert server.ask("dave-token", "summary").status == 503, "a user with one backend lost it"
        assert served(server, "alice-token")
