"""Checks of migrated requests: each selector is compiled for the API server, and its matches on a fleet are counted.

In: migrated texts, a fleet, classes. Out: a `Check` for each request. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.migrate import Migrated
from dra_driver.model.errors import ExitCode, InputError
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.objects.classes import Classes
from dra_driver.views.objects.documents import Document, parse_documents
from dra_driver.views.verdicts.queries import TEMPLATE, queries_of
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, QueryVerdicts, judge
from dra_driver.views.wording import plural


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome for one request. `devices` is None if there was no fleet and only the text was checked."""

    template: str
    request: str
    wanted: int
    expressions: tuple[str, ...]
    devices: int | None = None
    nodes: int = 0
    nodes_with_enough: int = 0
    aborts: int = 0
    problem: str = ""

    @property
    def words(self) -> str:
        """Return the outcome as a sentence."""
        if self.problem or self.devices is None:
            return self.problem or "the API server accepts it; it was not evaluated on devices"
        subject = "this selector matches" if len(self.expressions) == 1 else "these selectors match"
        subject = "the class matches" if not self.expressions else subject
        found = f"{subject} {plural(self.devices, 'device')} on {plural(self.nodes, 'node')}"
        if self.aborts:
            found += f"; {plural(self.aborts, 'device')} would abort scheduling"
        if self.wanted > 1 or not self.nodes_with_enough:
            enough = plural(self.nodes_with_enough, "node") if self.nodes_with_enough else "no node"
            verb = "has" if self.nodes_with_enough <= 1 else "have"
            found += f"; {enough} {verb} the {self.wanted} that the request wants" if self.devices else ""
        return found

    @property
    def exit_code(self) -> ExitCode:
        """The exit status that this outcome leads to."""
        if self.aborts:
            return ExitCode.ABORTS_SCHEDULING
        is_short = self.devices is not None and not self.nodes_with_enough
        return ExitCode.NO_MATCH if is_short or self.problem else ExitCode.OK


def checks_of(done: Sequence[Migrated], fleet: Fleet | None, classes: Classes, engine: KubernetesEngine) -> list[Check]:
    """Check every request of the templates that were written."""
    found = []
    for one in done:
        written = [document for document in parse_documents(one.new, one.origin) if _is_new(document, one)]
        for document in written:
            found += _check(document, fleet, classes, engine)
    return found


def _is_new(document: Document, one: Migrated) -> bool:
    return document.kind == TEMPLATE and document.name in one.templates


def _check(document: Document, fleet: Fleet | None, classes: Classes, engine: KubernetesEngine) -> list[Check]:
    requests = document.wire["spec"]["spec"]["devices"]["requests"]
    try:
        queries = queries_of((), [document], classes, None)
    except InputError as fault:
        return [_bare(document, request, problem=fault.message) for request in requests]
    judged = judge(queries, fleet or Fleet(), engine, "new")
    return [_counted(_bare(document, request), one, fleet) for request, one in zip(requests, judged, strict=True)]


def _bare(document: Document, request: dict[str, Any], problem: str = "") -> Check:
    exactly = request["exactly"]
    texts = tuple(row["cel"]["expression"] for row in exactly.get("selectors") or ())
    return Check(document.name, request["name"], exactly.get("count", 1), texts, problem=problem)


def _counted(bare: Check, judged: QueryVerdicts, fleet: Fleet | None) -> Check:
    """Count the devices that a request matches."""
    problems = [one.error.text if one.error else one.refusal for one in judged.compiled if one.error or one.refusal]
    problem = f"the API server refuses it: {problems[0]}" if problems else ""
    if fleet is None or problem:
        return Check(bare.template, bare.request, bare.wanted, bare.expressions, problem=problem)
    by_node = {node: len(held[MATCH]) for node, held in judged.by_node().items() if held[MATCH]}
    return Check(
        bare.template,
        bare.request,
        bare.wanted,
        bare.expressions,
        devices=sum(by_node.values()),
        nodes=len(by_node),
        nodes_with_enough=sum(count >= bare.wanted for count in by_node.values()),
        aborts=judged.count(ABORT),
    )
