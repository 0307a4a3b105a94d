"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

Code is read, never run: what counts is found from source alone. Part of it are the experiment,
what of its own script it loads as a global, what of autopar it names, and all this in turn for
each of these. Module paths, imports, docstrings, comments, layout and annotations are no part of
it, nor are methods that only show an object, such as `__repr__`.
"""

from __future__ import annotations
import __future__

import ast
import functools
import hashlib
import inspect
import itertools
import json
import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from autopar.effects.loads import Chain, chains

_HOUSE = __name__.partition(".")[0]  # autopar
_ROOT = next(each for each in Path(__file__).parents if each.name == _HOUSE)
_SHOWS = {"__repr__", "__str__", "__format__"}  # and `_repr_html_` and its like
_CELLS = re.compile(r"<ipython-input-|.*ipykernel_\d+[\\/]")  # how files of cells are named
_NO_PART = {"ctx", "kind", "returns", "type_comment"}  # fields of a node that change nothing
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = _DEFINES | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

Target = tuple["Module", str]  # a definition: the module and its name there


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """A SHA-256 over the experiment's code and parameters.

    Args:
        experiment: A function whose source can be read, of a file or a notebook.
        parameters: What it is called with; must be JSON.

    Raises:
        OSError: The source can't be read, as that of a function made by `exec`.
        TypeError: The experiment is no function, or the parameters are no JSON.
    """
    experiment = inspect.unwrap(experiment)
    lines, _ = inspect.findsource(experiment)
    texts = [*_cells(experiment, "".join(lines)), "".join(lines)]
    try:
        own = ast.parse(textwrap.dedent(inspect.getsource(experiment))).body[:1]
    except SyntaxError as error:  # a lambda in the middle of a statement
        msg = f"{experiment!r} has no source of its own; expected a function made with def."
        raise OSError(msg) from error
    return _digest(own, _module_of(*reversed(dict.fromkeys(reversed(texts)))), parameters)


def _cells(experiment: Callable[..., object], own: str) -> list[str]:
    """What a notebook has run, if the experiment is of one; its own cell has a given text."""
    namespace = getattr(experiment, "__globals__", {})
    if "get_ipython" not in namespace:
        return []
    history: list[str] = namespace.get("In", [])
    place = _CELLS.match(inspect.getsourcefile(experiment) or "")
    if place is None or own.strip() in map(str.strip, history):
        return history
    # Run without a history, as by `ipython page.ipynb`. What was compiled is there all the same.
    names = [name for name in linecache.cache if name.startswith(place[0])]
    return ["".join(linecache.getlines(name)) for name in names]


def script_digest(script: str, experiment: str, parameters: Mapping[str, Any]) -> str:
    """The same for a function of a script's text, which isn't run.

    Raises:
        KeyError: The script has no such function.
    """
    module = _module_of(script)
    return _digest(module.definitions[experiment], module, parameters)


def _digest(own: Iterable[ast.stmt], script: Module, parameters: Mapping[str, Any]) -> str:
    """Follow what the experiment names to all that counts, and hash that."""
    part, targets = _linked(experiment := _definition(own), script)
    parts, seen, queue = {part}, set(), [*targets]
    while queue:
        if (target := queue.pop()) not in seen:
            seen.add(target)
            part, targets = _linked_target(target)
            parts.add(part)
            queue += targets
    whole = {"parameters": parameters, "code": sorted(parts), "experiment": experiment.text}
    text = json.dumps(whole, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Module:
    """What the top level of some source defines and imports.

    Attributes:
        definitions: Name to the statements that bind it or change what it is bound to.
        imports: Name to where it comes from: a module, and a name in it or None for all of it.
    """

    def __init__(self, statements: Iterable[ast.stmt], name: str = "") -> None:
        self.name = name
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, list[tuple[str, str | None]]] = {}
        for statement in statements:
            for alias, origin in _imports([statement]):
                self.imports.setdefault(alias, []).append(origin)
            house = {each for each, found in self.imports.items() if _is_house(found[0][0])}
            for bound in _bound(statement, house):
                before = self.definitions.setdefault(bound, [])
                if _replaces(statement, bound):
                    before.clear()
                before.append(statement)

    def find(self, chain: Chain) -> Iterator[Target]:
        """The definitions that a name with its attributes stands for; none if they are others'."""
        name, *attributes = chain
        if name in self.definitions:
            yield self, name
        for origin in self.imports.get(name, ()):
            yield from _find(origin, tuple(attributes))
        if not {name} & {*self.definitions, *self.imports} and self.name:
            yield from _find((f"{self.name}.{name}", None), tuple(attributes))


class _Definition(NamedTuple):
    """What counts of a definition: what it does, as text, and what it names."""

    text: str
    chains: tuple[Chain, ...]
    imports: tuple[ast.stmt, ...]  # in functions


def _find(origin: tuple[str, str | None], attributes: Chain) -> Iterator[Target]:
    """The definitions that an import leads to, with the attributes that are read of it."""
    path, name = origin
    if name is not None and (room := _room(f"{path}.{name}")):  # a module of a package
        path, name = room.name, None
    room = _room(path)
    chain = attributes if name is None else (name, *attributes)
    if room and chain:
        yield from room.find(chain)
    elif room:  # a module as a value: any of what it defines or passes on may be meant
        for each in room.definitions:
            yield room, each
        for origin in itertools.chain(*room.imports.values()):
            if origin[1] is not None and not _room(f"{origin[0]}.{origin[1]}"):
                yield from _find(origin, ())


def _linked(definition: _Definition, module: Module) -> tuple[str, list[Target]]:
    """A definition's text and that of what it names as a digest, and where the latter are.

    Only one step deep: each that is named has a digest of its own.
    """
    inside = Module(definition.imports)
    found: list[Target] = []
    links: list[Chain] = []
    for chain in definition.chains:
        targets = list((inside if chain[0] in inside.imports else module).find(chain))
        found += targets
        links += [(*chain, text) for text in dict.fromkeys(_text_of(each) for each in targets)]
        for path, name in (*inside.imports.get(chain[0], ()), *module.imports.get(chain[0], ())):
            original = name or path.rpartition(".")[2]  # as in `from torch import mm as product`
            if chain[0] not in (original, path.partition(".")[0]) and not _is_house(path):
                links.append((chain[0], original))
    text = json.dumps([definition.text, sorted({*links})])
    return hashlib.sha256(text.encode()).hexdigest(), found


@functools.cache  # each is named by many
def _linked_target(target: Target) -> tuple[str, list[Target]]:
    module, name = target
    return _linked(_definition(module.definitions[name]), module)


@functools.cache
def _text_of(target: Target) -> str:
    module, name = target
    return _definition(module.definitions[name]).text


def _is_house(path: str) -> bool:
    return path.partition(".")[0] == _HOUSE


@functools.cache
def _room(path: str) -> Module | None:
    """A module of autopar by its dotted path, or None for others'."""
    if not _is_house(path):
        return None
    place = _ROOT.joinpath(*path.split(".")[1:])
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            return Module(ast.parse(file.read_text(encoding="utf-8")).body, path)
    return None


@functools.lru_cache(maxsize=64)
def _module_of(*texts: str) -> Module:
    """A script, or the cells of a notebook that can be read."""
    statements: list[ast.stmt] = []
    for text in texts:
        try:
            statements += ast.parse(text).body
        except SyntaxError:
            if len(texts) == 1:
                raise
    return Module(statements)


def _imports(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Name to where it is imported from; not those of functions and classes inside."""
    for node in _walk(statements):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.partition(".")[0]
                yield each.asname or top, (each.name if each.asname else top, None)
        elif isinstance(node, ast.ImportFrom):
            path = "." * node.level + (node.module or "")  # autopar's modules are named in full
            for each in node.names:
                yield each.asname or each.name, (path, each.name)


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of one scope."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _walk(ast.iter_child_nodes(node))


def _bound(statement: ast.stmt, house: Set[str]) -> Iterator[str]:
    """The names that a top-level statement binds, or whose value it changes.

    Calls of autopar's functions, `ap.show(...)`, change none.
    """
    for node in _walk([statement]):
        if isinstance(node, _DEFINES):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            if isinstance(node.ctx, (ast.Store, ast.Del)) and (owner := _owner(node)):
                yield owner
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func  # such as `TABLE.update(...)`
            owner = _owner(function) if isinstance(function, ast.Attribute) else None
            if owner and owner not in house:
                yield owner


def _owner(node: ast.expr) -> str | None:
    """The name in `name.attribute[key]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _replaces(statement: ast.stmt, name: str) -> bool:
    """Whether nothing that a name was bound to before can matter after a statement."""
    if isinstance(statement, _DEFINES):
        return not any(name == _owner(each) for each in statement.decorator_list)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    reads = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    plain = all(isinstance(node, (ast.Name, ast.Tuple, ast.List)) for node in targets)
    return plain and name not in reads


def _definition(statements: Iterable[ast.stmt]) -> _Definition:
    """What counts of some statements together."""
    found = [_own(statement) for statement in statements]
    return _Definition(
        " ".join(each.text for each in found),
        tuple(dict.fromkeys(chain for each in found for chain in each.chains)),
        tuple(each for one in found for each in one.imports),
    )


@functools.cache  # by identity: a statement is stripped once
def _own(statement: ast.stmt) -> _Definition:
    stripped = _Stripped()
    bare = stripped.visit(statement)
    body = [] if bare is None else [bare]
    module = ast.fix_missing_locations(ast.Module(body, type_ignores=[]))
    flags = __future__.annotations.compiler_flag  # annotations are text, and so load nothing
    code = compile(module, "<definition>", "exec", flags=flags, dont_inherit=True, optimize=0)
    return _Definition(_text(body), tuple(dict.fromkeys(chains(code))), tuple(stripped.imports))


class _Stripped(ast.NodeTransformer):
    """Takes off what is no part of what code does, and keeps its imports for itself."""

    def __init__(self) -> None:
        self.imports: list[ast.stmt] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports.append(node)

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        shows = node.name in _SHOWS or node.name.startswith("_repr_")
        return None if shows else self.generic_visit(node)


def _text(node: object) -> str:
    """A syntax tree as text that every Python writes alike, unlike `ast.dump`."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.JoinedStr):  # pieces of text are cut differently
        words = [each.value if isinstance(each, ast.Constant) else each for each in node.values]
        pieces = itertools.groupby(words, key=lambda each: isinstance(each, str))
        joined = ["".join(same) if text else [*same] for text, same in pieces]  # type: ignore
        return f"JoinedStr({', '.join(_text(each) for each in joined if each)})"
    fields = [
        f"{name}={_text(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NO_PART and value not in (None, [])
    ]
    return f"{type(node).__name__}({', '.join(fields)})"
