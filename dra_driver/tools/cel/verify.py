"""`dra-driver cel verify` and `cel record`: tests of selectors, kept beside the manifests that have them.

In: files of tests, which name selectors, simulated nodes or ResourceSlices, and what must match there. Out: which tests
fail and why; or a file of tests that says what matches today. Importing it costs megabytes, as `sections` does.

    version: selector-tests/v1
    files: [gpu-hopper.yaml]
    tests:
      - name: only Hopper
        query: class gpu-hopper.nvidia.com
        expect: {match: 8, of: dgx-h100, none-of: [t4, l40s]}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from xml.sax.saxutils import escape, quoteattr

import click
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import InitErrorDetails

from dra_driver.base.errors import DriverError, ExitCode, InputError, UsageError
from dra_driver.base.text.sections import Section, Text, fault, read_strictly
from dra_driver.base.versions import FEATURE_GATES, VERSIONS
from dra_driver.base.wire import Wire
from dra_driver.hardware.simulated.profile import profile_names
from dra_driver.selectors.check.declarations import SELECTOR_GATES
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.cel.verdicts import ABORT, MATCH, QueryVerdicts, judge, misses
from dra_driver.tools.options import input_options, read_inputs
from dra_driver.tools.output import console, print_text, printable, write_document, yaml_text
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.documents import TESTS, Classes, files_of, read_documents, shown
from dra_driver.tools.world.fields import nearest, plural
from dra_driver.tools.world.fleet import Fleet, fleet_of_profile, fleet_of_slices
from dra_driver.tools.world.queries import SLICE, Query, queries_of, with_expressions
from dra_driver.tools.world.shapes import ShapeChecker, checked
from dra_driver.tools.world.world import DEFAULT_VERSION, DYNAMIC, offer_under

VERSION = "selector-tests/v1"
_FEW = 8  # names in a message

# The file of tests.


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_Names = Annotated[list[Text], BeforeValidator(_as_list)]


class _Expectation(Section):
    model_config = ConfigDict(alias_generator=_kebab)

    match: int | Literal["all"] | list[Text] | None = Field(
        None, description="how many devices match, all, or a list of their names"
    )
    of: Text | None = Field(None, description="a profile, or a file with ResourceSlices")
    none_of: _Names = Field([], description="profiles, or files with ResourceSlices, of which no device matches")

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault if `match` and `of` are not given together, or nothing is."""
        if (self.match is None) != (self.of is None):
            missing = "of" if self.of is None else "match"
            yield fault("missing: `match` and `of` belong together", missing)
        elif self.of is None and not self.none_of:
            yield fault("missing: say what must match, or of what nothing may", "match")


class _Test(Section):
    name: Text = Field(description="a name for people")
    query: Text | None = Field(None, description="a selector of the files, such as class NAME")
    expression: Text | None = Field(None, description="an expression")
    expect: Annotated[list[_Expectation], BeforeValidator(_as_list), Field(min_length=1)] = Field(
        description="what must match, and what must not"
    )

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault unless the test has either a query or an expression."""
        if (self.query is None) == (self.expression is None):
            yield fault("give either a query (a selector of the files) or an expression", "query")


class _TestFile(Section):
    version: Literal["selector-tests/v1"]
    kubernetes: str = Field(DEFAULT_VERSION, description=f"one of {', '.join(VERSIONS)}")
    gates: dict[str, bool] = Field({}, description="feature gates that differ from the version's defaults")
    files: _Names = Field([], description="manifests, relative to this file")
    tests: list[_Test] = Field(min_length=1, description="at least one test")

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault for a version or a gate that does not exist."""
        if self.kubernetes not in VERSIONS:
            yield fault(f"expected one of {', '.join(VERSIONS)}", "kubernetes")
        for gate in self.gates.keys() - FEATURE_GATES.keys():
            hint = nearest(gate, FEATURE_GATES)
            yield fault(f"no feature gate has this name{f'; {hint}' if hint else ''}", "gates", gate)


# The verdicts of the tests.


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of a file, and why it fails; it passes without `failures`."""

    file: str
    name: str
    failures: tuple[str, ...]


def verify_file(path: Path) -> list[TestResult]:
    """Run the tests of a file. Raises: InputError for a bad file or bad manifests."""
    content = read_strictly(path, _TestFile, "selector-tests", "file of selector tests")
    documents = read_documents([str(path.parent / name) for name in content.files]) if content.files else []
    checker = ShapeChecker()
    for document in documents:
        checked(document, checker)
    classes = Classes([document for document in documents if document.kind == "DeviceClass"], None)
    queries = {query.title: query for query in queries_of((), documents, classes, None)}
    runner = _Runner(path.parent, content.kubernetes, content.gates)
    return [TestResult(str(path), test.name, tuple(runner.failures(test, queries))) for test in content.tests]


class _Runner:
    """Evaluates the tests of one file; each fleet that they name is made once."""

    def __init__(self, folder: Path, kubernetes: str, gates: dict[str, bool]) -> None:
        self._folder = folder
        self._offer = offer_under(kubernetes, gates, DYNAMIC)
        of_selectors = {name: is_on for name, is_on in gates.items() if name in SELECTOR_GATES}
        self._engine = KubernetesEngine(kubernetes, gates=of_selectors)
        self._fleets: dict[str, Fleet] = {}

    def failures(self, test: _Test, queries: dict[str, Query]) -> Iterator[str]:
        """Yield why a test fails."""
        if test.expression is not None:
            (query,) = queries_of([test.expression], (), Classes([], None), None)
        elif (test.query or "") in queries:
            query = queries[test.query or ""]
        else:
            yield f"no file has the selector {test.query!r}; they have {', '.join(queries) or 'none'}"
            return
        matched = 0
        for expectation in test.expect:
            for name, wanted in ((expectation.of, expectation.match), *((name, 0) for name in expectation.none_of)):
                if name is None:
                    continue
                judged, failure = self._judged(query, name)
                if judged is None:
                    yield failure
                    continue
                matched += judged.count(MATCH)
                yield from _differences(judged, name, wanted)
        if not matched:
            yield "no device matches: a test names at least one that does"

    def _judged(self, query: Query, name: str) -> tuple[QueryVerdicts | None, str]:
        """Return the verdicts on a fleet, or None and why there are none."""
        try:
            fleet = self._fleets[name] if name in self._fleets else self._fleets.setdefault(name, self._fleet(name))
        except DriverError as error:
            return None, error.message
        (judged,) = judge([query], fleet, self._engine, "stored")
        if broken := next((one for one in judged.compiled if one.error is not None), None):
            assert broken.error is not None  # noqa: S101  (as selected above)
            return None, f"{broken.written.label} does not compile: {broken.error.text.splitlines()[0]}"
        return judged, ""

    def _fleet(self, name: str) -> Fleet:
        path = self._folder / name
        if name in profile_names() or not path.is_file():
            return fleet_of_profile(name, offer=self._offer)
        slices = [document for document in read_documents([str(path)]) if document.kind == SLICE]
        if not slices:
            return fleet_of_profile(str(path), offer=self._offer)
        return fleet_of_slices([(f"ResourceSlice {slice_.name}", slice_.wire) for slice_ in slices], name)


def _differences(judged: QueryVerdicts, name: str, wanted: Any) -> Iterator[str]:
    """Yield how the verdicts on a fleet differ from what a test expects there."""
    if count := judged.count(ABORT):
        error = next(group.verdict.error for group in judged.groups if group.verdict.kind == ABORT)
        yield f"{name}: on {plural(count, 'device')} the selector fails, which aborts scheduling: {error}"
    found = [device.name for group in judged.groups if group.verdict.kind == MATCH for device in group.devices]
    total = sum(len(group.devices) for group in judged.groups)
    if isinstance(wanted, list):
        if lacking := [one for one in wanted if one not in found]:
            yield f"{name}: {_listed(lacking)} should match"
        if surplus := [one for one in found if one not in wanted]:
            yield f"{name}: {_listed(surplus)} should not match"
    elif len(found) != (total if wanted == "all" else wanted):
        expected = f"all {total}" if wanted == "all" else wanted or "none"
        near = [miss.reason for miss in misses(judged)[:1]] if not found else []
        but = f" (nearest miss: {near[0]})" if near else f" ({_listed(found)})" if found else ""
        yield f"{name}: {plural(len(found), 'device')} match{but}, expected {expected}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(names[:_FEW])}{more}"


# The commands.


@click.command(name="verify")
@click.argument("paths", nargs=-1, metavar="FILE...", required=True)
@click.option(
    "--output", "-o", type=click.Choice(["table", "json", "yaml", "junit"]), default="table", show_default=True
)
def cel_verify_command(paths: tuple[str, ...], output: str) -> int:
    """Run tests of selectors: which devices must match, and which must not.

    FILE is a file of tests (docs/selectors.md); a folder stands for all files below it whose names end with
    .selectors.yaml. `cel record` writes such a file from what matches today.

    \b
      dra-driver cel verify examples/selectors
      dra-driver cel verify deploy/ -o junit > report.xml

    \b
    Exit status:
      0  every test passes                3  a file is wrong
      1  a test fails                     2  the command line is wrong
    """  # noqa: D301
    results = [result for path in _test_files(paths) for result in verify_file(path)]
    if output == "junit":
        click.echo(printable(junit_text(results)), nl=False)
    elif output == "table":
        _show(results)
    else:
        rows = [{"file": result.file, "name": result.name, "failures": list(result.failures)} for result in results]
        write_document(OutputDocument(DocumentKind.SELECTOR_TESTS, {"tests": rows}), output)
    return ExitCode.NO_MATCH if any(result.failures for result in results) else ExitCode.OK


def _test_files(paths: Sequence[str]) -> list[Path]:
    found = []
    for path in map(Path, paths):
        files = sorted(path.rglob(f"*{TESTS}")) if path.is_dir() else [path]
        if not files:
            raise InputError("unreadable", f"there is no file below {shown(str(path))} whose name ends with {TESTS}")
        found += files
    return found


def _show(results: Sequence[TestResult]) -> None:
    out = console()
    for result in results:
        mark, style = ("✗", "bold red") if result.failures else ("✓", "green")
        print_text(out, f"{mark} {shown(result.file)}: {result.name}", style=style)
        for failure in result.failures:
            print_text(out, failure, indent=4)
    failed = sum(bool(result.failures) for result in results)
    summary = (
        f"{failed} of {plural(len(results), 'test')} failed" if failed else f"{plural(len(results), 'test')} passed"
    )
    print_text(out, summary, style="bold red" if failed else "bold green")


def junit_text(results: Sequence[TestResult]) -> str:
    """Return the results as a report in JUnit's form, one suite for each file."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for file in dict.fromkeys(result.file for result in results):
        rows = [result for result in results if result.file == file]
        failed = sum(bool(result.failures) for result in rows)
        lines.append(f'  <testsuite name={quoteattr(file)} tests="{len(rows)}" failures="{failed}" errors="0">')
        for result in rows:
            head = f"    <testcase name={quoteattr(result.name)} classname={quoteattr(file)} file={quoteattr(file)}"
            if not result.failures:
                lines.append(f"{head}/>")
                continue
            text = "\n".join(result.failures)
            lines.append(f"{head}>")
            lines.append(f"      <failure message={quoteattr(result.failures[0])}>{escape(text)}</failure>")
            lines.append("    </testcase>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


@click.command(name="record")
@input_options
@click.option("--write", "target", metavar="FILE", default=None, help="the file to write (default: standard output)")
def cel_record_command(target: str | None, **options: Any) -> int:
    """Write a file of tests from what the selectors match today.

    Each selector is tried on a node of each --fleet, by default of every shipped profile. Run the command again after a
    change of a class, and review the difference: a change of its devices.

    \b
      dra-driver cel record deviceclasses/ > shipped.selectors.yaml

    \b
    Exit status:
      0  written                                    3  an expression does not compile, a file is wrong
      2  the command line is wrong
    """  # noqa: D301
    if any(options[name] for name in ("kubeconfig", "context", "cluster", "hardware")):
        raise UsageError("record", "tests name simulated nodes: use --fleet")
    options, _ = with_expressions(options, options["kubernetes"] or DEFAULT_VERSION)
    given = read_inputs(options, needs_devices=False, refuses_configs=True)
    gates = {name: value.lower() == "true" for name, _, value in (row.partition("=") for row in options["gates"])}
    offer = offer_under(given.kubernetes, gates, options["mig"])
    fleets = {name: fleet_of_profile(name, offer=offer) for name in options["profiles"] or profile_names()}
    tests = [test for query in given.queries if (test := _recorded(query, fleets, given.engine()))]
    folder = Path(target).parent if target else Path()
    content: Wire = {"version": VERSION, "kubernetes": given.kubernetes, "gates": gates}
    content["files"] = [
        os.path.relpath(origin, folder)
        for path in (*options["files"], *options["more_files"])
        for origin in files_of(path)
    ]
    text = yaml_text({name: value for name, value in content.items() if value} | {"tests": tests})
    if target is None:
        click.echo(text, nl=False)
        return ExitCode.OK
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("unwritable", f"{shown(target)} can't be written: {error.strerror}") from error
    return ExitCode.OK


def _recorded(query: Query, fleets: Mapping[str, Fleet], engine: KubernetesEngine) -> Wire | None:
    """Return the test that says what a query matches; None, and a line to standard error, if it matches nothing."""
    counts = {}
    for name, fleet in fleets.items():
        (judged,) = judge([query], fleet, engine, "stored")
        if broken := next((one for one in judged.compiled if one.error is not None), None):
            assert broken.error is not None  # noqa: S101  (as selected above)
            raise InputError(
                "selector", f"{broken.written.label} does not compile: {broken.error.text.splitlines()[0]}"
            )
        counts[name] = judged.count(MATCH)
    matching: list[Wire] = [{"match": count, "of": name} for name, count in counts.items() if count]
    others = [name for name, count in counts.items() if not count]
    if not matching:
        click.echo(
            f"dra-driver: {query.title} matches nothing on {plural(len(fleets), 'fleet')}: it gets no test", err=True
        )
        return None
    expect = [*matching, {"none-of": others}] if others else matching
    if query.request != "-e":
        return {"name": query.title, "query": query.title, "expect": expect}
    expressions = [written.expression for written in query.selectors]
    text = expressions[0] if len(expressions) == 1 else " && ".join(f"({expression})" for expression in expressions)
    return {"name": query.title, "expression": text, "expect": expect}
