"""Random selectors: mostly well-typed, over every function that Kubernetes declares.

In: a source of randomness. Out: expressions. The calls are drawn from the same table of overloads that the checker
reads, so a new function is tried as soon as it is declared.
"""

from __future__ import annotations

import re
from random import Random

from cluster.oracle.terms import CAPACITY, DOMAIN, OTHER_DOMAIN, TERMS, fitting_literal, odd_literal
from dra_driver.selectors.check.declarations import Overload, declare
from dra_driver.selectors.values.types import Type, parse_type

BINARY = ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&&", "||")
SKIPPED = re.compile(r"@(?!in$)|authoriz|format\.\w+$")
ATTRIBUTES = ("bool", "int", "string", "version", "model", "neg", "empty", "missing", "ip", "ints", "strings", "bools")
GROUND = tuple(map(parse_type, ("bool", "int", "string", "list(int)", "kubernetes.Quantity", "double")))


def random_expressions(seed: int, count: int) -> list[str]:
    """Return the given number of different expressions; equal seeds give equal ones."""
    maker = _Maker(Random(seed))
    found: dict[str, None] = {}
    while len(found) < count:
        found[maker.expression()] = None
    return list(found)


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.variables: list[tuple[str, Type]] = []
        declarations = declare("1.37", {"DRAListTypeAttributes": True}, "stored")
        names = [name for name in declarations._rows if not SKIPPED.search(name)]
        every = [(name, overload) for name in names for overload in declarations.overloads(name)]
        self.calls = [(n, o) for n, o in every if "authoriz" not in o.id and "authoriz" not in str(o.result)]

    def expression(self) -> str:
        text = self.make(parse_type("bool"), self.random.choice([1, 2, 2, 3, 3, 4]))
        return self.mutate(text) if self.random.random() < 0.12 else text

    def mutate(self, text: str) -> str:
        """Return the text with one token removed, doubled or replaced, which is mostly an error of type or grammar."""
        tokens = re.findall(r'"[^"]*"|\w+|\s+|.', text)
        place = self.random.randrange(len(tokens))
        other = self.random.choice(["1", '"x"', "device", "null", "int", "x", "?", ".", "(", tokens[place] * 2, ""])
        return "".join([*tokens[:place], other, *tokens[place + 1 :]])

    def make(self, wanted: Type, depth: int) -> str:
        """Return an expression of the type, or of `dyn`, of about the given depth."""
        if self.random.random() < 0.05:
            wanted = self.random.choice(GROUND)  # mostly an error of type
        if depth <= 0 or self.random.random() < 0.12:
            return self.leaf(wanted) if self.random.random() < 0.95 else self.left_open(wanted)
        kind = self.random.random()
        if kind < 0.07:
            return self.attribute()
        if kind < 0.30:
            return self.macro(wanted, depth)
        if kind < 0.36:
            return f"dyn({self.make(wanted, depth - 1)})"
        if wanted.kind == "bool" and kind < 0.5:
            return self.comparison(depth)
        return self.call(wanted, depth)

    def leaf(self, wanted: Type) -> str:
        fitting = [name for name, kind in self.variables if kind.key == wanted.key]
        if fitting and self.random.random() < 0.7:
            return self.random.choice(fitting)
        if wanted.kind in {"dyn", "any", "param"}:
            return self.attribute() if self.random.random() < 0.6 else self.leaf(self.random.choice(GROUND))
        if wanted.kind == "list":
            return f"[{', '.join(self.leaf(wanted.params[0]) for _ in range(self.random.randint(0, 3)))}]"
        if wanted.kind == "map":
            key, value = wanted.params
            return f"{{{', '.join(f'{self.leaf(key)}: {self.leaf(value)}' for _ in range(self.random.randint(0, 2)))}}}"
        if wanted.name == "optional_type":
            return self.optional(wanted.params[0])
        if wanted.kind == "type":
            return self.random.choice(["int", "string", "bool", "type(1)", "list", "optional_type"])
        if wanted.kind == "string" and self.random.random() < 0.05:
            return odd_literal(self.random)
        return self.random.choice(TERMS.get(wanted.name, ("null",)))

    def left_open(self, wanted: Type) -> str:
        """Return a term whose type the checker does not know; once in a while its value has another type."""
        kind = wanted if self.random.random() < 0.7 else self.random.choice([*GROUND, *map(parse_type, TERMS)])
        made = self.random.choice([".distinct()[0]", ".reverse()[0]", ".slice(0, 1)[0]", ".first().value()"])
        return f"dyn([{self.leaf(kind)}]){made}"

    def optional(self, inner: Type) -> str:
        name = self.random.choice(ATTRIBUTES)
        place = self.random.choice([DOMAIN, OTHER_DOMAIN, CAPACITY])
        plain = self.leaf(inner)
        known = (
            f"{place}.?{name}",
            f'{place}[?"{name}"]',
            f"optional.of({plain})",
            "optional.none()",
            f"optional.ofNonZeroValue({plain})",
            f"[{plain}].first()",
            f"[{plain}][?{self.random.randint(0, 1)}]",
        )
        return self.random.choice(known)

    def attribute(self) -> str:
        place = DOMAIN if self.random.random() < 0.9 else OTHER_DOMAIN
        name = self.random.choice(ATTRIBUTES)
        shapes = [".{}"] * 12 + [".`{}`", '["{}"]', ".?{}.orValue(7)", ".?`{}`.hasValue()"]
        return place + self.random.choice(shapes).format(name)

    def comparison(self, depth: int) -> str:
        kind = self.random.choice([*GROUND, *map(parse_type, TERMS), parse_type("optional_type(int)")])
        left, right = self.make(kind, depth - 1), self.make(kind, depth - 1)
        return f"({left} {self.random.choice(BINARY[:6])} {right})"

    def call(self, wanted: Type, depth: int) -> str:
        fitting = [(name, one) for name, one in self.calls if _gives(one.result, wanted)]
        if not fitting:
            return self.leaf(wanted)
        name, overload = self.random.choice(fitting)
        bound = _bind(overload.result, wanted)
        for variable in overload.variables:
            bound.setdefault(variable, self.random.choice(GROUND))
        if name == "lists.range":
            return f"lists.range({self.random.choice(['0', '3', '-1', '60'])})"  # a long list would exhaust the memory
        args = [self.argument(name, _fill(param, bound), depth - 1) for param in overload.params]
        return _render(name, overload, args)

    def argument(self, function: str, wanted: Type, depth: int) -> str:
        """Return an argument of a call; a text is often one that the function reads in its own way."""
        literal = fitting_literal(self.random, function) if wanted.kind == "string" else None
        return literal if literal is not None and self.random.random() < 0.5 else self.make(wanted, depth)

    def macro(self, wanted: Type, depth: int) -> str:
        element = self.random.choice(GROUND)
        source = self.make(parse_type(f"list({element.key})"), depth - 2)
        if self.random.random() < 0.25:
            source = f"{DOMAIN}.{self.random.choice(['ints', 'strings', 'bools'])}"
        name = f"{self.random.choice('xyzv')}{len(self.variables) or ''}"
        if self.random.random() < 0.3:
            kind = self.random.choice(GROUND)
            value = self.make(kind, depth - 1)
            return f"cel.bind({name}, {value}, {self.within([(name, kind)], wanted, depth - 1)})"
        if wanted.kind == "bool":
            return self.quantifier(name, element, source, depth)
        if wanted.kind == "list":
            inner = wanted.params[0]
            if self.random.random() < 0.5:
                source = self.make(wanted, depth - 2)
                return f"{source}.filter({name}, {self.within([(name, inner)], parse_type('bool'), depth - 1)})"
            return f"{source}.map({name}, {self.within([(name, element)], inner, depth - 1)})"
        if wanted.name == "optional_type":
            optional = self.optional(element)
            return f"{optional}.optMap({name}, {self.within([(name, element)], wanted.params[0], depth - 1)})"
        condition = self.make(parse_type("bool"), depth - 1)
        return f"({condition} ? {self.make(wanted, depth - 1)} : {self.make(wanted, depth - 1)})"

    def quantifier(self, name: str, element: Type, source: str, depth: int) -> str:
        kind = self.random.choice(["all", "exists", "exists_one", "existsOne", "transformList", "transformMap"])
        names = [(name, element)]
        if kind in {"existsOne", "transformList", "transformMap"} or self.random.random() < 0.3:
            names = [(f"i{len(self.variables)}", parse_type("int")), (name, element)]
        body = self.within(names, parse_type("bool"), depth - 1)
        text = f"{source}.{kind}({', '.join(one for one, _ in names)}, {body})"
        return f"{text}.size() > {self.random.randint(0, 1)}" if kind.startswith("transform") else text

    def within(self, names: list[tuple[str, Type]], wanted: Type, depth: int) -> str:
        self.variables += names
        text = self.make(wanted, depth)
        del self.variables[-len(names) :]
        return text


def _render(name: str, overload: Overload, args: list[str]) -> str:
    shapes = {"_?_:_": "({} ? {} : {})", "_[_]": "{}[{}]", "_[?_]": "{}[?{}]", "!_": "!{}", "-_": "-({})"}
    if name in shapes:
        return shapes[name].format(*args)
    if name == "@in":
        return f"({args[0]} in {args[1]})"
    if name == "_?._":
        return f"{args[0]}.?missing"
    if name.startswith("_"):
        return f"({args[0]} {name.strip('_')} {args[1]})"
    if overload.member:
        return f"{args[0]}.{name}({', '.join(args[1:])})"
    return f"{name}({', '.join(args)})"


def _gives(result: Type, wanted: Type) -> bool:
    if result.kind == "param" or wanted.kind in {"dyn", "any"}:
        return True
    if result.name != wanted.name or len(result.params) != len(wanted.params):
        return False
    return all(_gives(a, b) for a, b in zip(result.params, wanted.params, strict=True))


def _bind(result: Type, wanted: Type) -> dict[str, Type]:
    if result.kind == "param":
        return {result.name: wanted}
    bound: dict[str, Type] = {}
    for inner, other in zip(result.params, wanted.params, strict=False):
        bound |= _bind(inner, other)
    return bound


def _fill(kind: Type, bound: dict[str, Type]) -> Type:
    if kind.kind == "param":
        return bound.get(kind.name, GROUND[0])
    if not kind.params:
        return kind
    return Type(kind.kind, kind.name, tuple(_fill(param, bound) for param in kind.params))
