"""The grammar as the server's parser has it: rules of parts, and the states between them.

In: nothing. Out: the compiled grammar, and which tokens may come at a state. Only `recovery` uses it, to tell syntax
errors in the server's words; `parser` decides.

Source: the CEL grammar of cel-go (parser/gen/CEL.g4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from dra_driver.selectors.parse.lexer import EOF, PRODUCTS, RELATIONS, SUMS

# Rules of parts.


@dataclass(frozen=True, slots=True)
class Rule:
    """A part that another rule parses, called with a precedence."""

    name: str
    precedence: int = 0


@dataclass(frozen=True, slots=True)
class Precedence:
    """What follows binds at least as tightly as its rule was called with."""

    least: int


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Parts of which one comes; `looks_far` if one token can't tell which."""

    alternatives: tuple[tuple[Part, ...], ...]
    looks_far: bool = False


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part that comes `least` times or more; at most once if it `is_optional`."""

    body: tuple[Part, ...]
    least: int = 0
    looks_far: bool = False
    is_optional: bool = False


Part = str | frozenset[str] | Rule | Precedence | Alternatives | Repeated


def _optional(*body: Part) -> Repeated:
    return Repeated(body, is_optional=True)


def _binary(operators: Iterable[str], rule: str, precedence: int) -> tuple[Part, ...]:
    return Precedence(precedence), frozenset(operators), Rule(rule, precedence + 1)


def _joined(operator: str, rule: str) -> tuple[Part, ...]:
    return Rule(rule), Repeated((operator, Rule(rule)))


_ENTRY = (Rule("optExpr"), ":", Rule("expr"))
_FIELD = (Rule("optField"), ":", Rule("expr"))
_CALL = ("(", _optional(Rule("exprList")), ")")
_COMMA = _optional(",")
_GRAMMAR: dict[str, tuple[Part, ...]] = {
    "start": (Rule("expr"), EOF),
    "expr": (Rule("or"), _optional("?", Rule("or"), ":", Rule("expr"))),
    "or": _joined("||", "and"),
    "and": _joined("&&", "relation"),
    "relation": (Rule("calc"), Repeated(_binary(RELATIONS, "relation", 1), looks_far=True)),
    "calc": (
        Rule("unary"),
        Repeated(
            (Alternatives((_binary(PRODUCTS, "calc", 2), _binary(SUMS, "calc", 1)), looks_far=True),), looks_far=True
        ),
    ),
    "unary": (
        Alternatives(
            (
                (Rule("member"),),
                (Repeated(("!",), 1), Rule("member")),
                (Repeated(("-",), 1, looks_far=True), Rule("member")),
            ),
            looks_far=True,
        ),
    ),
    "member": (
        Rule("primary"),
        Repeated(
            (
                Alternatives(
                    (
                        (Precedence(3), ".", _optional("?"), Rule("escapeIdent")),
                        (Precedence(2), ".", "ident", *_CALL),
                        (Precedence(1), "[", _optional("?"), Rule("expr"), "]"),
                    ),
                    looks_far=True,
                ),
            ),
            looks_far=True,
        ),
    ),
    "primary": (
        Alternatives(
            (
                (_optional("."), "ident"),
                (_optional("."), "ident", *_CALL),
                ("(", Rule("expr"), ")"),
                ("[", _optional(Rule("listInit")), _COMMA, "]"),
                ("{", _optional(Rule("mapInit")), _COMMA, "}"),
                (_optional("."), "ident", Repeated((".", "ident")), "{", _optional(Rule("fieldInit")), _COMMA, "}"),
                (Rule("literal"),),
            ),
            looks_far=True,
        ),
    ),
    "exprList": _joined(",", "expr"),
    "listInit": (Rule("optExpr"), Repeated((",", Rule("optExpr")), looks_far=True)),
    "fieldInit": (*_FIELD, Repeated((",", *_FIELD), looks_far=True)),
    "optField": (_optional("?"), Rule("escapeIdent")),
    "mapInit": (*_ENTRY, Repeated((",", *_ENTRY), looks_far=True)),
    "escapeIdent": (Alternatives((("ident",), ("quoted",))),),
    "optExpr": (_optional("?"), Rule("expr")),
    "literal": (
        Alternatives(
            (
                (_optional("-"), "int"),
                ("uint",),
                (_optional("-"), "float"),
                *((kind,) for kind in ("string", "bytes", "true", "false", "null")),
            ),
            looks_far=True,
        ),
    ),
}

# The order and the names in which the server lists what it expected.
_MARKS = "== != in < <= >= > && || [ ] { } ( ) . , - ! ? : + * / % true false null"
TOKEN_NAMES = {EOF: EOF} | {mark: f"'{mark}'" for mark in _MARKS.split()}
TOKEN_NAMES |= {"float": "NUM_FLOAT", "int": "NUM_INT", "uint": "NUM_UINT", "string": "STRING", "bytes": "BYTES"}
TOKEN_NAMES |= {"ident": "IDENTIFIER", "quoted": "ESC_IDENTIFIER"}

# The states between the parts.


@dataclass(eq=False, slots=True)
class State:
    """A place in the grammar. `edges` lead on: by tokens, by a rule, by a precedence, or by nothing (None)."""

    kind: str = "plain"  # "block": where alternatives or a loop begin; "back": where a loop goes round
    edges: list[tuple[frozenset[str] | Rule | Precedence | None, State]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a rule with its state; `back` is where a loop goes round, `bodies` its alternatives."""

    part: Part
    state: State
    back: State | None = None
    bodies: tuple[tuple[Step, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Grammar:
    """For each rule its steps, its first state, and the states that may follow it anywhere; rules by last states."""

    steps: dict[str, tuple[Step, ...]]
    first: dict[str, State]
    rule_at: dict[State, str]
    followers: dict[str, list[State]]


@cache
def grammar() -> Grammar:
    """Return the compiled grammar."""
    last = {name: State() for name in _GRAMMAR}
    followers: dict[str, list[State]] = {name: [] for name in _GRAMMAR}
    steps, first = {}, {}
    for name, parts in _GRAMMAR.items():
        steps[name], first[name] = _steps(parts, last[name], followers)
    return Grammar(steps, first, {state: name for name, state in last.items()}, followers)


def _steps(parts: Sequence[Part], end: State, followers: dict[str, list[State]]) -> tuple[tuple[Step, ...], State]:
    """Return the steps of parts that lead to a state, and the first state."""
    steps: list[Step] = []
    for part in reversed(parts):
        step = _step(part, end, followers)
        steps.insert(0, step)
        end = step.state
    return tuple(steps), end


def _step(part: Part, end: State, followers: dict[str, list[State]]) -> Step:
    if isinstance(part, Alternatives):
        state = State("block")
        bodies = []
        for alternative in part.alternatives:
            steps, start = _steps(alternative, end, followers)
            state.edges.append((None, start))
            bodies.append(steps)
        return Step(part, state, bodies=tuple(bodies))
    if isinstance(part, Repeated):
        state, back = State("block"), State("back")
        steps, start = _steps(part.body, end if part.is_optional else back, followers)
        state.edges.append((None, start))
        if part.least == 0:
            state.edges.append((None, end))
        back.edges = [(None, state), (None, end)] if part.least else [(None, state)]
        return Step(part, state, back, (steps,))
    if isinstance(part, Rule):
        followers[part.name].append(end)
    label = frozenset({part}) if isinstance(part, str) else part
    return Step(part, State(edges=[(label, end)]))


RULE_ENDS = ""  # among the tokens that may come: the rule may end


@cache
def next_tokens(state: State) -> frozenset[str]:
    """Return the tokens that may come at a state, and `RULE_ENDS` if its rule may end."""
    rules = grammar()
    found: set[str] = set()
    seen: set[tuple[State, tuple[State, ...]]] = set()
    pending: list[tuple[State, tuple[State, ...]]] = [(state, ())]
    while pending:
        place = current, behind = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        if current in rules.rule_at and behind:
            pending.append((behind[-1], behind[:-1]))
        elif current in rules.rule_at:
            found.add(RULE_ENDS)
        for label, target in current.edges:
            if isinstance(label, frozenset):
                found |= label
            elif isinstance(label, Rule):
                pending.append((rules.first[label.name], (*behind, target)))
            else:
                pending.append((target, behind))
    return frozenset(found)
