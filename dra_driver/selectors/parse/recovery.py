"""The syntax errors of an expression that does not parse, in the server's words.

In: its tokens. Out: faults. The parser stops at the first error; the server's own goes on, by deleting or inserting a
token or by skipping to one that may follow, and tells each place. Only words depend on this, no verdict.

Source: ANTLR's default strategy of recovery and its prediction, as cel-go's parser applies and limits them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.selectors.parse.grammar import (
    RULE_ENDS,
    TOKEN_NAMES,
    Alternatives,
    Precedence,
    Repeated,
    Rule,
    State,
    Step,
    grammar,
    next_tokens,
)
from dra_driver.selectors.parse.lexer import CONSTANTS, EOF, MAX_NESTING, NOWHERE, SyntaxFault, Token
from dra_driver.selectors.values.values import check_cancelled

_MAX_TOKENS = 2_000  # a longer text keeps the first error alone
_MAX_ATTEMPTS = 30
_MAX_SKIPPED = 256


@dataclass(frozen=True, slots=True)
class _Frame:
    """A rule that is being parsed: the state behind it in its caller, and the precedence that it was called with."""

    follow: State
    precedence: int


@dataclass(frozen=True, slots=True)
class _Configuration:
    """Where a prediction is with one alternative; `called` are the states behind the rules that it entered."""

    alternative: int
    state: State
    called: tuple[State, ...]
    left: bool = False  # the rule of the decision has ended, and any caller may go on


class _Unexpected(Exception):
    """The rule can't go on."""

    def __init__(self, offset: int, message: str) -> None:
        self.fault = SyntaxFault(offset, f"Syntax error: {message}")


class _GivenUp(Exception):
    """The server gives up as well; the fault has been recorded."""


def faults_as_told(text: str, tokens: Sequence[Token], faults: list[SyntaxFault]) -> list[SyntaxFault]:
    """Return the faults of a text that does not parse as the server tells them.

    `faults` are those until the first syntax error, which is the last of them; they are returned as they are if the
    text is nested too deeply, or too long for this to be worth its time.
    """
    if faults[-1].offset == NOWHERE or len(tokens) > _MAX_TOKENS:
        return faults
    dropped = [fault for fault in faults if "token recognition" in fault.message]
    parser = _Recovering(text, tokens, dropped)
    with contextlib.suppress(_GivenUp):
        parser.rule(Rule("start"), State())
    return [*(fault for fault in faults if not _is_of_grammar(fault)), *parser.faults]


def _is_of_grammar(fault: SyntaxFault) -> bool:
    return fault.message.startswith("Syntax error") and "token recognition" not in fault.message


def _dropped_width(fault: SyntaxFault) -> int:
    """Return how many characters the lexer has dropped, which its fault quotes."""
    return len(fault.message.partition("'")[2]) - 1


class _Recovering:
    def __init__(self, text: str, tokens: Sequence[Token], dropped: Sequence[SyntaxFault]) -> None:
        self._dropped = {fault.offset + index for fault in dropped for index in range(_dropped_width(fault))}
        self.faults: list[SyntaxFault] = []
        self._grammar = grammar()
        self._text, self._tokens = text, tokens
        self._at = 0
        self._frames: list[_Frame] = []
        self._state = State()
        self._is_recovering = False
        self._failed_at: tuple[int, set[State]] = (-1, set())
        self._attempts = self._depth = 0

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def rule(self, rule: Rule, follow: State) -> None:
        """Parse a rule; an error in it is told, and what can't follow it is skipped."""
        check_cancelled()
        self._depth += rule.name == "expr"
        if self._depth > MAX_NESTING:
            self.faults.append(SyntaxFault(NOWHERE, f"expression recursion limit exceeded: {MAX_NESTING}"))
            raise _GivenUp
        state = self._state
        self._frames.append(_Frame(follow, rule.precedence))
        try:
            self._run(self._grammar.steps[rule.name])
        except _Unexpected as error:
            self._report(error.fault)
            self._recover()
        self._frames.pop()
        self._state = state
        self._depth -= rule.name == "expr"

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._state = step.state
            part = step.part
            if isinstance(part, Alternatives):
                self._sync()
                self._run(step.bodies[self._chosen(step) - 1])
            elif isinstance(part, Repeated):
                self._repeat(step, part)
            elif isinstance(part, Rule):
                self.rule(part, step.state.edges[0][1])
            elif not isinstance(part, Precedence):
                self._match(frozenset({part}) if isinstance(part, str) else part)

    def _repeat(self, step: Step, part: Repeated) -> None:
        self._sync()
        count = 0
        while count < part.least or self._goes_on(step, part, count):
            self._run(step.bodies[0])
            count += 1
            if part.is_optional:
                return
            assert step.back is not None  # noqa: S101  (a loop has one)
            self._state = step.back
            self._sync()

    def _goes_on(self, step: Step, part: Repeated, count: int) -> bool:
        if part.looks_far:
            decision = step.back if part.least and count and step.back else step.state
            return self._predicted(decision) == 1
        return self._kind in next_tokens(step.state.edges[0][1])

    def _chosen(self, step: Step) -> int:
        assert isinstance(step.part, Alternatives)  # noqa: S101  (checked by the caller)
        if step.part.looks_far:
            return self._predicted(step.state)
        for number, (_, start) in enumerate(step.state.edges, 1):
            if self._kind in next_tokens(start):
                return number
        raise self._no_alternative(self._at, self._at)

    # What ANTLR's strategy does at an error.

    def _sync(self) -> None:
        """Delete one token, or skip some, where nothing that may come here comes."""
        if self._is_recovering:
            return
        expected = next_tokens(self._state)
        if RULE_ENDS in expected or self._kind in expected:
            return
        if self._state.kind == "back":
            self._tell_extraneous()
            self._skip_to(self._expected() | self._follow_set())
        elif not self._delete():
            raise self._mismatched()

    def _match(self, wanted: frozenset[str]) -> None:
        if self._kind in wanted:
            self._matched()
            self._advance()
            return
        self._attempt()
        if self._delete():
            self._advance()
            return
        if self._kind not in self._expected(self._state.edges[0][1]):
            raise self._mismatched()
        _, text, offset = self._tokens[self._at]
        self._report(SyntaxFault(offset, f"Syntax error: missing {self._expectation()} at {_quoted(text)}"))

    def _delete(self) -> bool:
        """Delete a token if the one behind it is expected; return whether."""
        following = self._tokens[self._at + 1][0] if self._at + 1 < len(self._tokens) else EOF
        if following not in self._expected():
            return False
        self._tell_extraneous()
        self._advance()
        self._matched()
        return True

    def _recover(self) -> None:
        self._attempt()
        at, states = self._failed_at
        if at == self._at and self._state in states:
            self._advance()
        self._failed_at = self._at, states | {self._state}
        self._skip_to(self._follow_set())

    def _attempt(self) -> None:
        if self._attempts == _MAX_ATTEMPTS:
            message = f"Syntax error: error recovery attempt limit exceeded: {_MAX_ATTEMPTS}"
            self.faults.append(SyntaxFault(self._tokens[self._at][2], message))
            raise _GivenUp
        self._attempts += 1

    def _skip_to(self, kinds: frozenset[str]) -> None:
        skipped = 0
        while self._kind != EOF and self._kind not in kinds:
            if skipped == _MAX_SKIPPED:
                message = f"error recovery token lookahead limit exceeded: {_MAX_SKIPPED}"
                self.faults.append(SyntaxFault(NOWHERE, message))
                raise _GivenUp
            self._advance()
            skipped += 1

    def _follow_set(self) -> frozenset[str]:
        """Return what may follow one of the rules that are being parsed."""
        return frozenset[str]().union(*map(next_tokens, set(self._callers()))) - {RULE_ENDS}

    def _expected(self, state: State | None = None) -> frozenset[str]:
        """Return the tokens that may come at a state (the current one), also behind the rules around it."""
        found = next_tokens(state or self._state)
        for caller in reversed(self._callers()):
            if RULE_ENDS not in found:
                return found
            found = (found - {RULE_ENDS}) | next_tokens(caller)
        return (found - {RULE_ENDS}) | {EOF} if RULE_ENDS in found else found

    def _callers(self) -> tuple[State, ...]:
        return tuple(frame.follow for frame in self._frames[1:])

    def _matched(self) -> None:
        self._is_recovering = False
        self._failed_at = -1, set()

    def _advance(self) -> None:
        self._at = min(self._at + 1, len(self._tokens) - 1)

    # The words.

    def _report(self, fault: SyntaxFault) -> None:
        """Record a fault, unless it only follows from the last one."""
        if not self._is_recovering:
            self._is_recovering = True
            self.faults.append(fault)

    def _expectation(self) -> str:
        expected = self._expected()
        names = [name for kind, name in TOKEN_NAMES.items() if kind in expected]
        return names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"

    def _tell_extraneous(self) -> None:
        _, text, offset = self._tokens[self._at]
        message = f"Syntax error: extraneous input {_quoted(text)} expecting {self._expectation()}"
        self._report(SyntaxFault(offset, message))

    def _mismatched(self) -> _Unexpected:
        _, text, offset = self._tokens[self._at]
        return _Unexpected(offset, f"mismatched input {_quoted(text)} expecting {self._expectation()}")

    def _no_alternative(self, first: int, last: int) -> _Unexpected:
        """Return the error that the tokens from the first to the last fit no alternative."""
        kind, text, offset = self._tokens[last]
        start, end = self._tokens[first][2], offset + (len(text) if kind != EOF else 0)
        seen = "".join(self._text[index] for index in range(start, end) if index not in self._dropped)
        if seen[1:] in CONSTANTS:
            return _Unexpected(offset, f"mismatched input '{seen[1:]}' expecting IDENTIFIER")
        return _Unexpected(offset, f"no viable alternative at input {_quoted(seen if self._kind != EOF else EOF)}")

    def _predicted(self, decision: State) -> int:
        """Return the alternative that fits; first whoever called the rule, and if several do, with its real callers."""
        found = self._simulated(decision, None)
        if found is None:
            found = self._simulated(decision, self._callers())
        assert found is not None  # noqa: S101  (with the callers there is an answer)
        return found

    def _simulated(self, decision: State, callers: tuple[State, ...] | None) -> int | None:
        """Return the alternative that fits; None without callers if that can't be told. Raises: _Unexpected."""
        at, current = self._at, _started(decision, self._frames[-1].precedence, callers)
        while True:
            kind = self._tokens[at][0]
            reached = _reached(current, kind, callers is not None)
            if not reached:
                ended = [one.alternative for one in current if one.left]
                if ended:
                    return min(ended)
                raise self._no_alternative(self._at, at)
            current = reached
            is_settled, alternative = _settled(current)
            if is_settled or kind == EOF:
                is_told = callers is not None or len({one.alternative for one in current}) == 1
                return alternative if is_told else None
            at += 1


# Prediction: which alternative fits the next tokens. What depends on the grammar alone is computed once.

_MOST_KNOWN = 4_096
_Configurations = frozenset[_Configuration]


@lru_cache(_MOST_KNOWN)
def _started(decision: State, precedence: int, callers: tuple[State, ...] | None) -> _Configurations:
    """Return where the alternatives of a decision begin, in a rule that was called with this precedence."""
    starts = [_Configuration(number, state, callers or ()) for number, (_, state) in enumerate(decision.edges, 1)]
    found = _closure(starts, precedence, len(callers or ()), is_full=callers is not None)
    if callers is not None or not _goes_on_by_precedence(decision):
        return found
    first = {(one.state, one.called) for one in found if one.alternative == 1}
    return frozenset(one for one in found if one.alternative == 1 or (one.state, one.called) not in first)


@lru_cache(_MOST_KNOWN)
def _reached(current: _Configurations, kind: str, is_full: bool) -> _Configurations:
    """Return where the configurations are behind a token of this kind."""
    moved = [
        _Configuration(one.alternative, target, one.called, one.left)
        for one in current
        for label, target in one.state.edges
        if isinstance(label, frozenset) and kind in label
    ]
    return _closure(moved, 0, -1, is_full=is_full)


@lru_cache(_MOST_KNOWN)
def _settled(current: _Configurations) -> tuple[bool, int]:
    """Return whether further tokens tell no more, and the first of the alternatives."""
    alternatives = {one.alternative for one in current}
    return len(alternatives) == 1 or _is_ambiguous(current), min(alternatives)


def _goes_on_by_precedence(decision: State) -> bool:
    """Return whether a decision is that of the loop of a rule with precedences."""
    body = decision.edges[0][1]
    inner = [body, *(state for label, state in body.edges if label is None)]
    return len(decision.edges) == 2 and any(
        isinstance(label, Precedence) for state in inner for label, _ in state.edges
    )


def _closure(starts: Sequence[_Configuration], precedence: int, own: int, *, is_full: bool) -> _Configurations:
    """Return the configurations with all that they reach without a token.

    The precedence applies to the rule of the decision itself, with `own` callers. If not `is_full`, a rule without
    callers is continued by all that may follow it.
    """
    rules = grammar()
    found: set[_Configuration] = set()
    pending = list(starts)
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        name = rules.rule_at.get(one.state)
        if name is not None and one.called:
            pending.append(replace(one, state=one.called[-1], called=one.called[:-1]))
        elif name is not None and not is_full:
            pending += [_Configuration(one.alternative, state, (), True) for state in rules.followers[name]]
        for label, target in one.state.edges:
            if isinstance(label, Rule):
                pending.append(replace(one, state=rules.first[label.name], called=(*one.called, target)))
            elif isinstance(label, Precedence):
                if one.left or len(one.called) != own or label.least >= precedence:
                    pending.append(replace(one, state=target))
            elif label is None:
                pending.append(replace(one, state=target))
    return frozenset(found)


def _is_ambiguous(configurations: _Configurations) -> bool:
    """Return whether every place is reached by several alternatives."""
    places: dict[tuple[State, tuple[State, ...]], set[int]] = {}
    for one in configurations:
        places.setdefault((one.state, one.called), set()).add(one.alternative)
    return all(len(alternatives) > 1 for alternatives in places.values())


def _quoted(text: str) -> str:
    escaped = text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
