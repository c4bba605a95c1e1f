"""Feature gates on the command line: NAME=BOOL, or several of these joined by commas.

In: the values of --gate, the version whose rules apply, and the gates that the command depends on. Out: the gates whose
defaults are overridden.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dra_driver.model.errors import UsageError
from dra_driver.model.kubernetes import FEATURE_GATES, minor_of
from dra_driver.views.wording import nearest


def read_gates(rows: Iterable[str], kubernetes: str, *, known: Collection[str], dependent: str) -> dict[str, bool]:
    """Read values of --gate; `dependent` names, for errors, what depends on the `known` gates. Raises: UsageError."""
    gates: dict[str, bool] = {}
    for one in (part.strip() for row in rows for part in row.split(",")):
        name, _, value = one.partition("=")
        if value.lower() not in {"true", "false"}:
            raise UsageError("gate", f"--gate {one!r} is not NAME=true or NAME=false")
        if name not in known:
            raise UsageError("gate", f"--gate {name}: no {dependent} depends on this gate", hint=nearest(name, known))
        since = FEATURE_GATES[name].since
        if value.lower() == "true" and since > minor_of(kubernetes) > 0:
            raise UsageError("gate", f"--gate {name}: Kubernetes knows it since 1.{since}, not in {kubernetes}")
        gates[name] = value.lower() == "true"
    return gates


def given_gates(rows: Iterable[str], kubernetes: str) -> dict[str, bool]:
    """Read the values of --gate for a command that allocates. Raises: UsageError."""
    from dra_driver.views.worlds.rules import KNOWN_GATES

    return read_gates(rows, kubernetes, known=KNOWN_GATES, dependent="allocation")
