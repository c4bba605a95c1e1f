"""What macros expand to: folds, bindings, presence tests.

In: target and arguments of a call, as nodes. Out: the node that replaces it, or a `BadMacro`. Nothing is evaluated, and
the cost estimate depends on exactly these shapes.

Source: cel-go's standard macros, its bindings, optional, lists and two-variable comprehension extensions.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.selectors.parse.tree import (
    BadMacro,
    Call,
    Comprehension,
    Expansion,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
    copy,
)

BINDINGS = frozenset({"bind", "optMap", "optFlatMap", "sortBy"})  # macros that name a value instead of looping
ACCUMULATOR = "@result"  # can't be written in an expression
UNUSED = "#unused"
_LEGACY_ACCUMULATOR = "__result__"
_SORT_INPUT = "@__sortBy_input__"


Macro = Callable[[Expansion, "Node | None", list[Node], int], "Node | None"]


def _name(node: Node, message: str) -> str:
    if type(node) is Ident:
        return node.name
    raise BadMacro(node.offset, message)


def _iteration_name(node: Node, message: str) -> str:
    name = _name(node, message)
    if name in {ACCUMULATOR, _LEGACY_ACCUMULATOR}:
        raise BadMacro(node.offset, "iteration variable overwrites accumulator variable")
    return name


def _pair(args: list[Node]) -> tuple[str, str]:
    first = _name(args[0], "argument must be a simple name")
    second = _name(args[1], "argument must be a simple name")
    if first == second:
        raise BadMacro(args[1].offset, f"duplicate variable name: {first}")
    _iteration_name(args[0], "")
    _iteration_name(args[1], "")
    return first, second


def _op(function: str, offset: int, *args: Node) -> Call:
    return Call(function, None, list(args), offset)


def _accu(offset: int) -> Ident:
    return Ident(ACCUMULATOR, offset)


def _empty_list(offset: int) -> ListLiteral:
    return ListLiteral([], frozenset(), offset)


def _quantifier(kind: str, names: tuple[str, str], range_: Node, predicate: Node, at: int) -> Node:
    if kind == "all":
        init: Node = Literal(True, at)
        cond: Node = _op("@not_strictly_false", at, _accu(at))
        step: Node = _op("_&&_", at, _accu(at), predicate)
        result: Node = _accu(at)
    elif kind == "exists":
        init = Literal(False, at)
        cond = _op("@not_strictly_false", at, _op("!_", at, _accu(at)))
        step = _op("_||_", at, _accu(at), predicate)
        result = _accu(at)
    else:
        init, cond = Literal(0, at), Literal(True, at)
        step = _op("_?_:_", at, predicate, _op("_+_", at, _accu(at), Literal(1, at)), _accu(at))
        result = _op("_==_", at, _accu(at), Literal(1, at))
    return Comprehension(kind, range_, (*names, ACCUMULATOR), (init, cond, step, result), at)


def _fold(kind: str, names: tuple[str, str], range_: Node, condition: Node | None, step: Node) -> Node:
    """Build a fold that collects: its step runs for each element, or for the elements that meet the condition."""
    at = step.offset
    init = MapLiteral([], at) if kind.startswith("transformMap") else _empty_list(at)
    if condition is not None:
        step = _op("_?_:_", at, condition, step, _accu(at))
    always = Literal(True, at)
    return Comprehension(kind, range_, (*names, ACCUMULATOR), (init, always, step, _accu(at)), at)


def _append(element: Node, at: int) -> Node:
    return _op("_+_", at, _accu(at), ListLiteral([element], frozenset(), at))


def _bind(macro: str, name: str, init: Node, result: Node, at: int) -> Node:
    never = Literal(False, at)
    return Comprehension(macro, _empty_list(at), (UNUSED, "", name), (init, never, Ident(name, at), result), at)


def _one_variable(kind: str) -> Macro:
    def expand(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
        assert target is not None  # noqa: S101
        name = _iteration_name(args[0], "argument must be a simple name")
        return _quantifier(kind, (name, ""), target, args[1], at)

    return expand


def _two_variables(kind: str) -> Macro:
    def expand(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
        assert target is not None  # noqa: S101
        return _quantifier(kind, _pair(args), target, args[2], at)

    return expand


def _map(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    assert target is not None  # noqa: S101
    name = _iteration_name(args[0], "argument is not an identifier")
    condition = args[1] if len(args) > 2 else None
    return _fold("map", (name, ""), target, condition, _append(args[-1], at))


def _filter(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    assert target is not None  # noqa: S101
    name = _iteration_name(args[0], "argument is not an identifier")
    return _fold("filter", (name, ""), target, args[1], _append(Ident(name, args[0].offset), at))


def _transform_list(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    assert target is not None  # noqa: S101
    condition = args[2] if len(args) > 3 else None
    return _fold("transformList", _pair(args), target, condition, _append(args[-1], at))


def _transform_map(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    assert target is not None  # noqa: S101
    names = _pair(args)
    condition = args[2] if len(args) > 3 else None
    step = _op("cel.@mapInsert", at, _accu(at), Ident(names[0], at), args[-1])
    return _fold("transformMap", names, target, condition, step)


def _transform_map_entry(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    assert target is not None  # noqa: S101
    names = _pair(args)
    condition = args[2] if len(args) > 3 else None
    step = _op("cel.@mapInsert", at, _accu(at), args[-1])
    return _fold("transformMapEntry", names, target, condition, step)


def _cel_bind(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node | None:
    if type(target) is not Ident or target.name != "cel":
        return None
    name = _name(args[0], "cel.bind() variable names must be simple identifiers")
    return _bind("bind", name, args[1], args[2], at)


def _has(_: Expansion, __: Node | None, args: list[Node], at: int) -> Node:
    chosen = args[0]
    if type(chosen) is not Select:
        raise BadMacro(chosen.offset, "invalid argument to has() macro")
    return Select(chosen.operand, chosen.field, at, test=True)


def _optional_map(macro: str, *, wrap: bool) -> Macro:
    def expand(expansion: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
        assert target is not None  # noqa: S101
        name = _name(args[0], f"{macro}() variable name must be a simple identifier")
        value = Call("value", copy(target, expansion), [], at)
        bound = _bind(macro, name, value, args[1], at)
        then = _op("optional.of", at, bound) if wrap else bound
        return _op("_?_:_", at, Call("hasValue", target, [], at), then, _op("optional.none", at))

    return expand


def _sort_by(_: Expansion, target: Node | None, args: list[Node], at: int) -> Node:
    if type(target) in {Literal, MapLiteral, Message} or target is None:
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise BadMacro(target.offset if target is not None else at, message)
    name = _iteration_name(args[0], "argument is not an identifier")
    keys = _fold("map", (name, ""), Ident(_SORT_INPUT, at), None, _append(args[1], at))
    return _bind("sortBy", _SORT_INPUT, target, Call("@sortByAssociatedKeys", Ident(_SORT_INPUT, at), [keys], at), at)


EXPANDERS: dict[tuple[str, int, bool], Macro] = {
    ("has", 1, False): _has,
    ("all", 2, True): _one_variable("all"),
    ("exists", 2, True): _one_variable("exists"),
    ("exists_one", 2, True): _one_variable("exists_one"),
    ("map", 2, True): _map,
    ("map", 3, True): _map,
    ("filter", 2, True): _filter,
    ("all", 3, True): _two_variables("all"),
    ("exists", 3, True): _two_variables("exists"),
    ("exists_one", 3, True): _two_variables("exists_one"),
    ("existsOne", 3, True): _two_variables("existsOne"),
    ("transformList", 3, True): _transform_list,
    ("transformList", 4, True): _transform_list,
    ("transformMap", 3, True): _transform_map,
    ("transformMap", 4, True): _transform_map,
    ("transformMapEntry", 3, True): _transform_map_entry,
    ("transformMapEntry", 4, True): _transform_map_entry,
    ("bind", 3, True): _cel_bind,
    ("optMap", 2, True): _optional_map("optMap", wrap=True),
    ("optFlatMap", 2, True): _optional_map("optFlatMap", wrap=False),
    ("sortBy", 2, True): _sort_by,
}
