"""Checks of migrated requests: each selector is compiled for the API server, and its matches on a fleet are counted.

In: migrated texts, a fleet, classes. Out: a `Check` for each request. It changes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.base.errors import ExitCode, InputError
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.cel.verdicts import ABORT, MATCH, QueryVerdicts, judge
from dra_driver.tools.migrate import Migrated, SourceText
from dra_driver.tools.world.access import DocumentKind, OutputDocument, plain
from dra_driver.tools.world.documents import Classes, Document, parse_documents
from dra_driver.tools.world.fields import plural
from dra_driver.tools.world.fleet import Fleet
from dra_driver.tools.world.queries import TEMPLATE, queries_of
from dra_driver.tools.world.shapes import ShapeChecker, checked


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


# The report of a migration as a document: what was changed and why, and what is lost; and a file's changes as a
# diff.


def diff_of(one: Migrated) -> str:
    """Return the changes as a unified diff; "" if there are none."""
    old, new = one.old.splitlines(keepends=True), one.new.splitlines(keepends=True)
    name = one.origin.lstrip("/")
    rows = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def migration_document(done: Sequence[Migrated], checks: Sequence[Check], *, diff: bool) -> OutputDocument:
    """Return the document of the report; with `diff`, each file has its changes as a unified diff."""
    content = {
        "files": [_file_document(one, diff=diff) for one in done],
        "checks": [_check_document(check) for check in checks],
    }
    return OutputDocument(DocumentKind.MIGRATION, content)


def _file_document(one: Migrated, *, diff: bool) -> dict[str, Any]:
    return {
        "file": one.origin,
        "changed": one.new != one.old,
        "changes": [plain(row) for row in one.changes],
        "losses": [plain(row) for row in one.losses],
        "templates": list(one.templates),
        "text": one.new,
        **({"diff": diff_of(one)} if diff else {}),
    }


def _check_document(check: Check) -> dict[str, Any]:
    return {
        "template": check.template,
        "request": check.request,
        "wanted": check.wanted,
        "selectors": list(check.expressions),
        "devices": check.devices,
        "nodes": check.nodes,
        "nodesWithEnough": check.nodes_with_enough,
        "aborts": check.aborts,
        "problem": check.problem,
        "message": check.words,
    }


# Check manifests before they are migrated, for fields that the API does not have and values of the wrong type.

_VARIABLES = "fill in variables (envsubst, helm template) before migrating"


def refuse_faults(sources: Sequence[SourceText]) -> None:
    """Refuse objects with faults, which a migration would only hide. Raises: InputError("input.object")."""
    checker = ShapeChecker()
    for source in sources:
        try:
            documents = list(parse_documents(source.text, source.origin))
        except InputError:
            continue  # a template that is not rendered, or text that is not YAML: the migration itself reports it
        for document in documents:
            try:
                checked(document, checker)
            except InputError as fault:
                if fault.hint or "${" not in source.text:
                    raise
                raise InputError("object", fault.message, hint=_VARIABLES) from None
