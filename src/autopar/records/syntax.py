"""Syntax: what statements of Python run, bind again and say, told from their trees."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*DEFINES, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_HOLDS = (ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Dict, ast.Starred)
_CONSTANT = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context)
_NO_PART = {"annotation", "ctx", "kind", "returns", "type_comment"}  # fields of syntax trees
_RECORDS = ("recorded", "observed")  # what these run is in a digest by itself
_SHOWS = {"__repr__", "__str__", "__format__"}  # and `_repr_html_` and its like


def imports_of(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Name to the dotted path that it is imported from; not those of functions inside."""
    for node in walk([statement]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of one scope."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from walk(ast.iter_child_nodes(node))


def run_by(statement: ast.stmt) -> Iterator[ast.AST]:
    """All nodes that a statement runs itself: no bodies of functions, and nothing recorded."""
    nodes: list[ast.AST] = [statement]
    for node in nodes:  # which grows meanwhile
        yield node
        called = getattr(node, "func", None)
        if getattr(called, "attr", getattr(called, "id", "")) not in _RECORDS:
            body = node.body if isinstance(node, FUNCTIONS) else ()
            nodes += [inside for inside in ast.iter_child_nodes(node) if inside not in body]


def bound_again(statement: ast.stmt, name: str) -> Iterator[str]:
    """What a name becomes another name of, as in `name = TABLE` and `for name in (A, B)`."""
    targets = (*getattr(statement, "targets", ()), getattr(statement, "target", ast.Pass()))
    if name not in {getattr(n, "id", None) for target in targets for n in ast.walk(target)}:
        return
    nodes = [getattr(statement, field, None) for field in ("value", "iter")]
    for node in nodes:  # which grows meanwhile
        if isinstance(node, ast.Name | ast.Attribute) and owner(node):
            yield owner(node)
        elif isinstance(node, _HOLDS):
            nodes += ast.iter_child_nodes(node)


def owner(node: ast.AST) -> str:
    """The name in `name.attribute[key]`, or nothing."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_constant(statement: ast.stmt) -> bool:
    """Whether a statement binds what nothing can change: numbers, texts, and tuples of them."""
    value = getattr(statement, "value", None) or statement
    return all(isinstance(node, _CONSTANT) for node in ast.walk(value))


class _Stripped(ast.NodeTransformer):
    """Puts `pass`, which is no part of the text, in place of what is no part of what code does."""

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.AST:
        return ast.Pass()

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        shows = node.name in _SHOWS or node.name.startswith("_repr_")
        return ast.Pass() if shows else self.generic_visit(node)


def stripped(statement: ast.stmt) -> ast.stmt:
    """The statement itself, changed to hold only what it does."""
    only: ast.stmt = _Stripped().visit(statement)
    return only


def text_of(node: object) -> str:
    """A syntax tree as text that every Python writes alike, unlike `ast.dump`."""
    if isinstance(node, list):
        return f"[{', '.join(text_of(part) for part in node if not isinstance(part, ast.Pass))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.JoinedStr):  # pieces of text are cut differently
        words = [value.value if isinstance(value, ast.Constant) else value for value in node.values]
        pieces = itertools.groupby(words, key=lambda word: isinstance(word, str))
        joined = ["".join(same) if text else [*same] for text, same in pieces]  # type: ignore
        return f"JoinedStr({', '.join(text_of(piece) for piece in joined if piece)})"
    fields = [
        f"{name}={text_of(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NO_PART and value not in (None, [])
    ]
    return f"{type(node).__name__}({', '.join(fields)})"
