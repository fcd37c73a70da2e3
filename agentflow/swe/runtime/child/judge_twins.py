"""Tests that must fail, made after the awaited ones: decoys beside them, twins at the end.

A decoy has the name of its test and fails on two random numbers. A twin is the test itself, with
one assertion altered: a literal that it compares with is another one, or, where there is none, the
assertion is negated. Code that solves the task fails it; code that makes every test pass does not.
Twins run when all tests are over, so that they change nothing for these.
"""

from __future__ import annotations

import ast
import copy
import types
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[], int]
    """A random number below 2**32."""

_NODE_ID_ATTRIBUTES = ("_nodeid", "_id")
"""Where pytest before and since 9.2 keeps an item's id; a decoy bears its twin's name."""
_LETTERS = "etaoinshrdlucmfw"
_REWRITTEN = "@pytest_ar"
"""A global of each module whose assertions pytest has rewritten."""


def make_decoy(item: pytest.Item, draw: Draw) -> pytest.Item:
    """A test of the same id and name that fails."""
    name = getattr(item, "originalname", None) or item.name
    name = name if name.isidentifier() else "test"
    place: dict[str, Any] = {}
    seen = draw()
    source = f"def {name}():\n    assert {seen} == {seen + 1 + draw()}\n"
    exec(compile(source, str(item.fspath), "exec"), place)  # noqa: S102  # own text
    place[name].__module__ = getattr(getattr(item, "module", None), "__name__", name)
    module = item.getparent(pytest.Module) or item.parent
    return _named(item, pytest.Function.from_parent(module, name=item.name, callobj=place[name]))


def make_twin(item: pytest.Item, draw: Draw) -> pytest.Item | None:
    """The same test with one assertion altered; None where that is not certain to fail.

    For plain functions that have an assertion which each run that passes comes by.
    """
    function = getattr(item, "obj", None)
    if type(item) is not pytest.Function or not isinstance(function, types.FunctionType):
        return None
    code = _altered(function, str(item.fspath), draw)
    if code is None:
        return None
    twin = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__annotations__ = function.__annotations__
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    twin.__dict__.update(vars(function))
    made = pytest.Function.from_parent(
        item.parent,
        name=item.name,
        callspec=getattr(item, "callspec", None),
        callobj=twin,
        fixtureinfo=item._fixtureinfo,  # noqa: SLF001  # that of the test, for the same values
        originalname=item.originalname,
    )
    return _named(item, made)


def _named(item: pytest.Item, made: pytest.Item) -> pytest.Item:
    for private in _NODE_ID_ATTRIBUTES:
        if hasattr(item, private):
            setattr(made, private, getattr(item, private))
    return made


# --- altering a test --------------------------------------------------------------------------


def _altered(function: types.FunctionType, path: str, draw: Draw) -> types.CodeType | None:
    """Code of the function from its file, with one assertion altered."""
    code = function.__code__
    if code.co_filename != path:
        return None  # a decorator's own function
    try:
        with open(path, "rb") as file:
            source = file.read()
        tree = ast.parse(source, path)
    except (OSError, SyntaxError, ValueError):
        return None
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_it(node, code)
    ]
    if len(found) != 1 or not _alter(found[0], draw):
        return None
    ast.fix_missing_locations(tree)
    if _REWRITTEN in function.__globals__:
        rewrite_asserts(tree, source, path)
    return _code_like(code, compile(tree, path, "exec", dont_inherit=True))


def _is_it(node: ast.FunctionDef, code: types.CodeType) -> bool:
    if node.name != code.co_name:
        return False
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno


def _code_like(wanted: types.CodeType, module: types.CodeType) -> types.CodeType | None:
    """The code of the same name and place inside the module's."""
    for value in module.co_consts:
        if isinstance(value, types.CodeType):
            same = (value.co_name, value.co_firstlineno) == (wanted.co_name, wanted.co_firstlineno)
            if same and value.co_freevars == wanted.co_freevars:
                return value
            inner = _code_like(wanted, value)
            if inner is not None:
                return inner
    return None


def _alter(function: ast.FunctionDef, draw: Draw) -> bool:
    """Alter one assertion in the function's own block; False if there is none to alter."""
    if any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in ast.walk(function)):
        return False
    asserts = [node for node in function.body if isinstance(node, ast.Assert)]
    for node in asserts:
        other = _other_test(node.test, draw)
        if other is not None:
            node.test = other
            return True
    if asserts:
        node = asserts[draw() % len(asserts)]
        node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
    return bool(asserts)


def _other_test(test: ast.expr, draw: Draw) -> ast.expr | None:
    """`a == literal` with another literal, which `a` cannot be equal to as well."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if not isinstance(test.ops[0], ast.Eq):
        return None
    other = copy.deepcopy(test)
    literal = _first_literal(other.comparators[0])
    if literal is None:
        return None
    literal.value = _unlike(literal.value, draw)
    return other


def _first_literal(node: ast.expr) -> ast.Constant | None:
    """A literal that is the whole of a value, or an element of a list or tuple that is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return node
    if isinstance(node, (ast.List, ast.Tuple)):
        found = (_first_literal(element) for element in node.elts)
        return next((literal for literal in found if literal is not None), None)
    return None


def _unlike(value: Any, draw: Draw) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        number = draw() | 1
        return value + "".join(_LETTERS[number >> shift & 15] for shift in range(0, 24, 4))
    return value + 1 + draw() % 1000 if abs(value) < 2**31 else -value
