"""From tokens to a tree with expanded macros.

In: the text and the macros of the environment. Out: the root node, or the faults of this stage. It is a recursive
descent whose depth the grammar's own limits bound, so no text can exhaust the stack.

Source: the CEL grammar and the limits of cel-go's parser (code points, nesting of rules, open visits). It stops at the
first syntax error; `recovery` tells this error and those behind it.
"""

from __future__ import annotations

from dra_driver.selectors.parse.lexer import (
    CONSTANTS,
    EOF,
    MAX_NESTING,
    NOWHERE,
    OPERAND,
    PRODUCTS,
    RELATIONS,
    RESERVED,
    SUMS,
    BadLiteral,
    Cursor,
    Stop,
    SyntaxFault,
    Token,
    find_outermost,
    read_bytes,
    read_double,
    read_int,
    read_string,
    read_uint,
    room_for,
    tokenize,
)
from dra_driver.selectors.parse.macros import Macro
from dra_driver.selectors.parse.recovery import faults_as_told
from dra_driver.selectors.parse.tree import (
    BadMacro,
    Call,
    Entry,
    Expansion,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
    balance,
)

# Terms: literals, lists, maps, messages and the arguments of calls.


class Terms(Cursor):
    """The part of the parser that reads terms and arguments. The parser itself supplies `_expr`."""

    __slots__ = ()

    def _expr(self) -> Node:
        raise NotImplementedError

    def _number(self, offset: int, *, negative: bool) -> Node:
        kind, text, _ = self._advance()
        try:
            if kind == "int":
                return Literal(read_int(text, negative=negative), offset)
            if kind == "uint":
                return Literal(read_uint(text), offset)
            return Literal(read_double(text, negative=negative), offset)
        except BadLiteral as bad:
            self.faults.append(SyntaxFault(offset, str(bad)))
            return Literal(0, offset)

    def _text(self) -> Node:
        kind, text, offset = self._advance()
        try:
            return Literal(read_string(text) if kind == "string" else read_bytes(text), offset)
        except BadLiteral as bad:
            self.faults.append(SyntaxFault(offset, str(bad)))
            return Literal("", offset)

    def _list(self) -> Node:
        offset = self._advance()[2]
        elements: list[Node] = []
        optional: set[int] = set()
        visits = 0
        more = self._kind not in {"]", ","}
        while more:
            if self._optional_mark():
                optional.add(len(elements))
            element = self._expr()
            visits = max(visits, element.visits)
            elements.append(element)
            more = self._comma("]")
        self._close("]")
        return ListLiteral(elements, frozenset(optional), offset, visits)

    def _map(self) -> Node:
        offset = self._advance()[2]
        entries: list[Entry] = []
        visits = 0
        more = self._kind not in {"}", ","}
        while more:
            optional = self._optional_mark()
            key = self._expr()
            colon = self._expect(":")[2]
            value = self._expr()
            visits = max(visits, key.visits, value.visits)
            entries.append(Entry(key, "", value, colon, optional=optional))
            more = self._comma("}")
        self._close("}")
        return MapLiteral(entries, offset, visits)

    def _message(self, dot: str) -> Node:
        name = dot + self._advance()[1]
        while self._kind == ".":
            self._advance()
            name += "." + self._advance()[1]
        offset = self._expect("{")[2]
        entries: list[Entry] = []
        visits = 0
        more = self._kind not in {"}", ","}
        while more:
            optional = self._optional_mark()
            if self._kind not in {"ident", "quoted"}:
                self._fail("mismatched", "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}")
            field = self._field_name()
            colon = self._expect(":")[2]
            value = self._expr()
            visits = max(visits, value.visits)
            entries.append(Entry(None, field, value, colon, optional=optional))
            more = self._comma("}")
        self._close("}")
        return Message(name, entries, offset, visits)

    def _arguments(self) -> list[Node]:
        """Parse the arguments and the closing parenthesis."""
        args: list[Node] = []
        if self._kind != ")":
            args.append(self._expr())
            while self._kind == ",":
                self._advance()
                args.append(self._expr())
        if self._kind != ")":
            self._fail("mismatched", "{')', ','}")
        self._advance()
        return args

    def _optional_mark(self) -> bool:
        if self._kind == "?":
            self._advance()
            return True
        return False

    def _comma(self, closing: str) -> bool:
        """Skip a comma that is followed by another element."""
        if self._kind == "," and self._tokens[self._at + 1][0] != closing:
            self._advance()
            return True
        return False

    def _close(self, closing: str) -> None:
        if self._kind == ",":
            self._advance()
        if self._kind != closing:
            self._fail("mismatched", f"{{'{closing}', ','}}")
        self._advance()


MAX_CODE_POINTS = 100_000
_FRAMES_PER_TOKEN = 12


def parse(
    text: str, macros: dict[tuple[str, int, bool], Macro], *, quotes_fields: bool
) -> tuple[Node | None, list[SyntaxFault]]:
    """Parse an expression; return its root, or None with the faults. `quotes_fields` allows names between backticks."""
    if len(text) > MAX_CODE_POINTS:
        message = f"expression code point size exceeds limit: size: {len(text)}, limit {MAX_CODE_POINTS}"
        return None, [SyntaxFault(NOWHERE, message)]
    tokens, faults = tokenize(text)
    parser = _Parser(tokens, faults, macros, quotes_fields=quotes_fields)
    with room_for(_FRAMES_PER_TOKEN * min(len(tokens), 8 * MAX_NESTING)):
        try:
            root = parser.whole()
        except Stop:
            return None, faults_as_told(text, tokens, parser.faults)
    if not parser.faults and root.visits > MAX_NESTING:
        parser.faults.append(SyntaxFault(NOWHERE, "max recursion depth exceeded"))
    return (None, parser.faults) if parser.faults else (root, [])


class _Parser(Terms):
    """The state of one parse: the position and the depth."""

    __slots__ = ("_calcs", "_expansion", "_exprs", "_macros", "_relations")

    def __init__(
        self,
        tokens: list[Token],
        faults: list[SyntaxFault],
        macros: dict[tuple[str, int, bool], Macro],
        *,
        quotes_fields: bool,
    ) -> None:
        super().__init__(tokens, faults, quotes_fields=quotes_fields)
        self._macros = macros
        self._expansion = Expansion()
        self._exprs = self._relations = self._calcs = 0

    def whole(self) -> Node:
        """Parse the whole text as one expression."""
        root = self._expr()
        if self._kind != EOF:
            self._fail("mismatched", EOF)
        return root

    def _expr(self) -> Node:
        self._exprs += 1
        self._relations += 1
        self._calcs += 1
        if self._exprs > MAX_NESTING or self._relations > MAX_NESTING or self._calcs > MAX_NESTING:
            self._too_deep()
        node = self._or()
        if self._kind == "?":
            offset = self._advance()[2]
            then = self._or()
            self._expect(":")
            self._relations -= 1
            self._calcs -= 1
            otherwise = self._expr()
            self._relations += 1
            self._calcs += 1
            visits = max(node.visits, then.visits, otherwise.visits) + 1
            node = self._span(Call("_?_:_", None, [node, then, otherwise], offset, visits), node.start)
        self._exprs -= 1
        self._relations -= 1
        self._calcs -= 1
        return node

    def _or(self) -> Node:
        node = self._and()
        if self._kind != "||":
            return node
        terms, offsets = [node], []
        while self._kind == "||":
            offsets.append(self._advance()[2])
            terms.append(self._and())
        return balance("_||_", terms, offsets, 0, len(offsets) - 1)

    def _and(self) -> Node:
        node = self._relation()
        if self._kind != "&&":
            return node
        terms, offsets = [node], []
        while self._kind == "&&":
            offsets.append(self._advance()[2])
            terms.append(self._relation())
        return balance("_&&_", terms, offsets, 0, len(offsets) - 1)

    def _relation(self) -> Node:
        node = self._sum()
        while self._kind in RELATIONS:
            kind, _, offset = self._advance()
            self._relations += 1
            if self._relations > MAX_NESTING:
                self._too_deep()
            right = self._sum()
            self._relations -= 1
            visits = max(node.visits, right.visits) + 1
            node = self._span(Call(RELATIONS[kind], None, [node, right], offset, visits), node.start)
        return node

    def _sum(self) -> Node:
        node = self._product()
        while self._kind in SUMS:
            kind, _, offset = self._advance()
            self._calcs += 1
            if self._calcs > MAX_NESTING:
                self._too_deep()
            right = self._product()
            self._calcs -= 1
            visits = max(node.visits, right.visits) + 1
            node = self._span(Call(SUMS[kind], None, [node, right], offset, visits), node.start)
        return node

    def _product(self) -> Node:
        node = self._unary()
        while self._kind in PRODUCTS:
            kind, _, offset = self._advance()
            self._calcs += 1
            if self._calcs > MAX_NESTING:
                self._too_deep()
            right = self._unary()
            self._calcs -= 1
            visits = max(node.visits, right.visits) + 1
            node = self._span(Call(PRODUCTS[kind], None, [node, right], offset, visits), node.start)
        return node

    def _unary(self) -> Node:
        kind = self._kind
        if kind not in {"!", "-"}:
            return self._postfix(self._primary())
        if kind == "-" and self._tokens[self._at + 1][0] in {"int", "float"}:
            offset = self._advance()[2]
            return self._postfix(self._span(self._number(offset, negative=True), offset))
        offset = self._advance()[2]
        count = 1
        while self._kind == kind:
            self._advance()
            count += 1
        operand = self._postfix(self._primary())
        if count % 2 == 0:
            return operand
        return self._span(Call("!_" if kind == "!" else "-_", None, [operand], offset, operand.visits), offset)

    def _postfix(self, node: Node) -> Node:
        while True:
            kind = self._kind
            if kind == ".":
                node = self._member(node)
            elif kind == "[":
                offset = self._advance()[2]
                function = "_[_]"
                if self._kind == "?":
                    self._advance()
                    function = "_[?_]"
                index = self._expr()
                self._expect("]")
                visits = max(node.visits, index.visits) + 1
                node = self._span(Call(function, None, [node, index], offset, visits), node.start)
            else:
                return node

    def _member(self, node: Node) -> Node:
        """Parse `.name`, `.?name` or `.name(args)` after `node`."""
        offset = self._advance()[2]
        optional = self._kind == "?"
        if optional:
            self._advance()
        if self._kind not in {"ident", "quoted"}:
            self._no_alternative(".?" if optional else ".")
        called = self._kind == "ident" and self._tokens[self._at + 1][0] == "("
        name_offset = self._tokens[self._at][2]
        name = self._field_name()
        if optional:
            field = Literal(name, name_offset)
            return self._span(Call("_?._", None, [node, field], offset, node.visits + 1), node.start)
        if not called:
            return self._span(Select(node, name, offset), node.start)
        start, offset = node.start, self._advance()[2]
        args = self._arguments()
        visits = 1 + max([node.visits, *[arg.visits for arg in args]])
        return self._span(self._call(name, node, args, offset, visits), start)

    def _primary(self) -> Node:
        start = self._tokens[self._at][2]
        node = self._operand()
        if not hasattr(node, "start"):
            self._span(node, start)
        return node

    def _operand(self) -> Node:
        kind = self._kind
        if kind == "ident":
            return self._named("")
        if kind in {"string", "bytes"}:
            return self._text()
        if kind in {"int", "float", "uint"}:
            return self._number(self._tokens[self._at][2], negative=False)
        if kind in CONSTANTS:
            return Literal(CONSTANTS[kind], self._advance()[2])
        if kind == "(":
            self._advance()
            node = self._expr()
            self._expect(")")
            return node
        if kind == "[":
            return self._list()
        if kind == "{":
            return self._map()
        if kind == ".":
            self._advance()
            if self._kind == "ident":
                return self._named(".")
            self._no_alternative(".")
        if kind == "-":
            return self._negative_number()
        self._fail("mismatched", OPERAND)
        raise AssertionError  # _fail always raises

    def _negative_number(self) -> Node:
        """Parse a minus after "!", which can only be the sign of a number."""
        self._advance()
        if self._kind not in {"int", "float"}:
            self._no_alternative(f"-{self._tokens[self._at][1]}")
        return self._number(self._tokens[self._at - 1][2], negative=True)

    def _named(self, dot: str) -> Node:
        """Parse what begins with a name: an identifier, a global call, a message."""
        if self._is_message():
            return self._message(dot)
        _, name, offset = self._advance()
        reserved = name in RESERVED
        if self._kind == "(":
            if reserved:
                self.faults.append(SyntaxFault(offset, f"reserved identifier: {name}"))
            offset = self._advance()[2]
            start = self._at
            try:
                args = self._arguments()
            except Stop:
                if name == "has" and not dot:
                    self._unfinished_test(start)
                raise
            return self._call(dot + name, None, args, offset, max([0, *[arg.visits for arg in args]]))
        if reserved:
            self.faults.append(SyntaxFault(offset, f"reserved identifier: {name}"))
        return Ident(dot + name, offset)

    def _unfinished_test(self, start: int) -> None:
        """Report the argument of a has() that a syntax error cut short, because the server recovers and checks it."""
        top = find_outermost(self._tokens[start : self._at])
        if top is not None:
            self.faults.append(SyntaxFault(top, "invalid argument to has() macro"))

    def _call(self, function: str, target: Node | None, args: list[Node], offset: int, visits: int) -> Node:
        """Make a call or, if a macro of that name, style and arity exists, its expansion."""
        macro = self._macros.get((function, len(args), target is not None))
        if macro is not None:
            try:
                expanded = macro(self._expansion, target, args, offset)
            except BadMacro as bad:
                self.faults.append(SyntaxFault(bad.offset, bad.message))
                return Literal(None, offset)
            if expanded is not None:
                expanded.visits = visits
                return expanded
        return Call(function, target, args, offset, visits)
