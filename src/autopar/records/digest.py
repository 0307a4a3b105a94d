"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

Code is read, never run: what counts is found from source alone. Part of it are the experiment,
what of its own script it loads as a global, what of autopar it names, and all this in turn for
each of these. Module paths, imports, docstrings, comments, layout and annotations are no part of
it, nor are methods that only show an object, such as `__repr__`.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dis
import functools
import hashlib
import inspect
import itertools
import json
import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autopar.effects.loads import Chain, chains, codes

_PACKAGE = __name__.partition(".")[0]  # autopar
_ROOT = next(folder for folder in Path(__file__).parents if folder.name == _PACKAGE)
_SHOWS = {"__repr__", "__str__", "__format__"}  # and `_repr_html_` and its like
_CELLS = re.compile(r"<ipython-input-|.*ipykernel_\d+[\\/]")  # how files of cells are named
_NO_PART = {"annotation", "ctx", "kind", "returns", "type_comment"}  # fields of syntax trees
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_BINDS = {f"{action}_{place}" for action in ("STORE", "DELETE") for place in ("NAME", "GLOBAL")}
_OPAQUE = ("exec", "eval", "globals", "__import__")  # what these do can't be read
_HARMLESS = {*dir(builtins)} - {"setattr", "delattr"}  # change nothing that they get
_SCOPES = _DEFINES | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

Target = tuple["Module", str]  # a definition: the module and its name there
Link = tuple[Chain, list[Target], list[str]]  # a name: definitions, or paths in other packages


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """The `script_digest` of a function of a file or a notebook; OSError if it has no source."""
    experiment = inspect.unwrap(experiment)
    text = "".join(inspect.findsource(experiment)[0])
    cells = dict.fromkeys(reversed([*_cells(experiment, text), text]))  # each as it was run last
    script = _script(*reversed(cells), textwrap.dedent(inspect.getsource(experiment)))
    if experiment.__name__ not in script.definitions:  # a lambda
        msg = f"{experiment!r} has no source of its own; expected a function made with def."
        raise OSError(msg)
    return _digest((script, experiment.__name__), parameters)


def _cells(experiment: Callable[..., object], text: str) -> list[str]:
    """What a notebook has run, if the experiment is of one; its own cell has a given text."""
    place = _CELLS.match(inspect.getsourcefile(experiment) or "")
    history: list[str] = getattr(experiment, "__globals__", {}).get("In", []) if place else []
    if place is None or text.strip() in map(str.strip, history):
        return history
    # Run without a history, as by `ipython page.ipynb`. What was compiled is there all the same.
    names = [name for name in linecache.cache if name.startswith(place[0])]
    return ["".join(linecache.getlines(name)) for name in names]


def script_digest(script: str, experiment: str, parameters: Mapping[str, Any]) -> str:
    """A SHA-256 over the code that a function of a script's text runs through, and parameters."""
    return _digest((_script(script), experiment), parameters)


def _digest(experiment: Target, parameters: Mapping[str, Any]) -> str:
    """Hash what each definition does, and by their numbers which ones it names."""
    numbers, code = {experiment: 0}, []
    for definition in (reached := [experiment]):  # which grows meanwhile
        text, links = _linked(definition)
        for target in itertools.chain(*(targets for _, targets, _ in links)):
            if target not in numbers:
                numbers[target] = len(numbers)
                reached.append(target)
        named = [(chain, [numbers[t] for t in targets], paths) for chain, targets, paths in links]
        code.append((text, named))
    whole = json.dumps({"parameters": parameters, "code": code}, sort_keys=True)
    return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


class Module:
    """What the top level of some source defines and imports."""

    def __init__(self, statements: Iterable[ast.stmt] = (), *, is_script: bool = False) -> None:
        self.is_script = is_script
        self.definitions: dict[str, list[ast.stmt]] = {}  # what binds a name or changes its value
        self.imports: dict[str, list[str]] = {}  # the dotted paths that a name may stand for
        for statement in statements:
            self.add(statement)

    def add(self, statement: ast.stmt) -> set[str]:
        """Read one more statement; return the names that it binds, or whose values it changes."""
        for name, path in _imports(statement):
            self.imports.setdefault(name, []).append(path)
        names = {*_bound(statement), *self._changed(statement)}
        if _is_opaque(statement) and not isinstance(statement, _DEFINES):
            names |= self.definitions.keys()
        for name in names:
            before = self.definitions.setdefault(name, [])
            if before and _replaces(statement, name):
                before.clear()
            before.append(statement)
        return names

    def _changed(self, statement: ast.stmt) -> Iterator[str]:
        """The names whose values a call may change, as `TABLE.update(...)` and `shuffle(TABLE)`."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return
        call = statement.value
        root = _owner(call.func) or ""
        if _is_ours(self.imports.get(root, [""])[0]) or root in _HARMLESS:
            return
        if isinstance(call.func, ast.Attribute) and root not in self.imports:
            yield root  # a method, which is taken to change what it is of
            return
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        names = [n.id for part in given for n in ast.walk(part) if isinstance(n, ast.Name)]
        for function in self.definitions.get(root, ()):
            names += (*_bound(function), *(chain[0] for chain in _definition(function)[1]))
        for name in names:
            if not all(isinstance(one, _DEFINES) for one in self.definitions.get(name, ())):
                yield name

    def find(self, chain: Chain) -> Iterator[Target]:
        """The definitions that a name with its attributes stands for; none if they are others'."""
        name, *attributes = chain
        if name in self.definitions:
            yield self, name
        for path in self.imports.get(name, ()):
            yield from _find((*path.split("."), *attributes))


@functools.cache  # each is named by many
def _linked(target: Target) -> tuple[str, list[Link]]:
    """What a definition does, as text, and what each name that it loads stands for."""
    module, name = target
    texts, loads, _, imports = zip(*map(_definition, module.definitions[name]), strict=True)
    if module.is_script and any(map(_is_opaque, module.definitions[name])):
        msg = f"{name} uses one of {', '.join(_OPAQUE)}; expected code that says what it does."
        raise TypeError(msg)
    inside = Module(itertools.chain(*imports))
    links = []
    for chain in sorted({*itertools.chain(*loads)}):
        scope = inside if chain[0] in inside.imports else module
        origins = [path for path in scope.imports.get(chain[0], ()) if not _is_ours(path)]
        if (targets := list(scope.find(chain))) or origins:
            links.append((chain, targets, origins))
    return " ".join(texts), links


def _find(path: Chain) -> Iterator[Target]:
    """The definitions of the package that a path leads to: through modules into the last one."""
    for end in range(len(path), 0, -1):
        if module := _module(".".join(path[:end])):
            names = sorted({*module.definitions, *module.imports})  # any, of a module as a value
            names = [name for name in names if not any(map(_module, module.imports.get(name, ())))]
            for chain in [path[end:]] if path[end:] else zip(names, strict=True):
                yield from module.find(chain)
            return


def _is_ours(path: str) -> bool:
    return path.split(".")[0] == _PACKAGE


@functools.cache
def _module(path: str) -> Module | None:
    """A module of autopar by its dotted path, or None if there is none."""
    place = _ROOT.joinpath(*path.split(".")[1:])
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if _is_ours(path) and file.is_file():
            return Module(ast.parse(file.read_text(encoding="utf-8")).body)
    return None


@functools.lru_cache(maxsize=64)
def _script(*texts: str) -> Module:
    """A script, or the cells of a notebook."""
    statements: list[ast.stmt] = []
    for text in texts:
        with contextlib.suppress(SyntaxError):  # as of a cell with a magic command
            statements += ast.parse(text).body
    return Module(statements, is_script=True)


def _imports(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Name to the dotted path that it is imported from; not those of functions inside."""
    for node in _walk([statement]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of one scope."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _walk(ast.iter_child_nodes(node))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement binds, or whose parts it binds, `global` ones too."""
    yield from _definition(statement)[2]
    for node in _walk([statement]):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield from filter(None, [_owner(node)])


def _owner(node: ast.expr) -> str | None:
    """The name in `name.attribute[key]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _replaces(statement: ast.stmt, name: str) -> bool:
    """Whether nothing that a name was bound to before can matter after a statement."""
    if isinstance(statement, ast.Assign):
        _, loads, *_ = _definition(statement)
        return name not in {chain[0] for chain in loads}
    return isinstance(statement, _DEFINES) and statement.name == name


def _is_opaque(statement: ast.stmt) -> bool:
    """Whether what a statement loads or changes can't be told without running it."""
    return any(chain[0] in _OPAQUE for chain in _definition(statement)[1])


@functools.cache  # by identity, as stripping changes a statement
def _definition(statement: ast.stmt) -> tuple[str, set[Chain], set[str], Sequence[ast.stmt]]:
    """What a statement does, as text, the names it loads and binds, and its inner imports."""
    imports = [n for n in ast.walk(statement) if isinstance(n, (ast.Import, ast.ImportFrom))]
    module = ast.Module([_Stripped().visit(statement)], type_ignores=[])
    ast.fix_missing_locations(module)
    flags = __future__.annotations.compiler_flag  # annotations are text, and so load nothing
    code = compile(module, "<definition>", "exec", flags=flags, dont_inherit=True, optimize=0)
    binds = {
        step.argval
        for part in codes(code)
        for step in dis.get_instructions(part)
        if step.opname in _BINDS and (part is code or step.opname.endswith("GLOBAL"))
    }
    return _text(module.body), {*chains(code)}, binds, imports


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


def _text(node: object) -> str:
    """A syntax tree as text that every Python writes alike, unlike `ast.dump`."""
    if isinstance(node, list):
        return f"[{', '.join(_text(part) for part in node if not isinstance(part, ast.Pass))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.JoinedStr):  # pieces of text are cut differently
        words = [value.value if isinstance(value, ast.Constant) else value for value in node.values]
        pieces = itertools.groupby(words, key=lambda word: isinstance(word, str))
        joined = ["".join(same) if text else [*same] for text, same in pieces]  # type: ignore
        return f"JoinedStr({', '.join(_text(piece) for piece in joined if piece)})"
    fields = [
        f"{name}={_text(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NO_PART and value not in (None, [])
    ]
    return f"{type(node).__name__}({', '.join(fields)})"
