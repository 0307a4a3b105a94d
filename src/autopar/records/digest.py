"""Digest: the measured code and its parameters as one number, the same wherever it is computed.

Code is read, never run: what counts is found from source alone. Part of it are the experiment,
what of its own script it loads as a global, what of autopar it names, and all this in turn for
each of these; and the statements of its script that may change one of these as they run: by
setting it or a part of it, by calling its methods, or by giving it away. Code that hides what it
does, such as `exec`, is refused. Module paths, imports, docstrings, comments, layout and
annotations are no part of it, nor are methods that only show an object, such as `__repr__`.
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
from types import CodeType, MappingProxyType
from typing import Any

from autopar.effects.loads import Chain, chains, codes
from autopar.records.syntax import (
    DEFINES,
    FUNCTIONS,
    bound_again,
    imports_of,
    is_constant,
    owner,
    run_by,
    stripped,
    text_of,
    walk,
)

_PACKAGE = __name__.partition(".")[0]  # autopar
_ROOT = next(folder for folder in Path(__file__).parents if folder.name == _PACKAGE)
_CELLS = re.compile(r"<ipython-input-|.*ipykernel_\d+[\\/]")  # how files of cells are named
_BINDS = {f"{action}_{place}" for action in ("STORE", "DELETE") for place in ("NAME", "GLOBAL")}
_OPAQUE = re.compile(  # code that can't be read, or that reaches names nobody can follow
    r"(builtins\.)?(exec|eval|globals|locals|__import__)|importlib\.import_module"
    r"|(sys\.modules|__main__|.*\.__globals__)(\..*)?"
)
_SETS = ("setattr", "delattr")
_HARMLESS = {*dir(builtins)} - {*_SETS}  # change nothing that they get
_READS = {
    name
    for kind in (MappingProxyType, tuple, str)  # which nothing changes
    for name in dir(kind)
    if not name.startswith("__")
}

Target = tuple["Module", str]  # a definition: the module and its name there
Link = tuple[Chain, list[Target], list[str]]  # a name: definitions, or paths in other packages


def code_digest(experiment: Callable[..., object], parameters: Mapping[str, Any]) -> str:
    """The `script_digest` of a function of a file or a notebook; OSError if it has no source."""
    experiment = inspect.unwrap(experiment)
    text = "".join(inspect.findsource(experiment)[0])
    cells = dict.fromkeys(reversed([*_cells(experiment, text), text]))  # each as it was run last
    script = read_script(*reversed(cells), textwrap.dedent(inspect.getsource(experiment)))
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
    return _digest((read_script(script), experiment), parameters)


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
        self.hidden: set[str] = set()  # what its top level runs that can't be read
        self.definitions: dict[str, list[ast.stmt]] = {}  # what binds a name or changes its value
        self.imports: dict[str, list[str]] = {}  # the dotted paths that a name may stand for
        self.statements: list[tuple[ast.stmt, set[str]]] = []  # with what each binds or changes
        for statement in statements:
            self.statements.append((statement, self.add(statement)))

    def add(self, statement: ast.stmt) -> set[str]:
        """Read one more statement; return the names that it binds, or whose values it changes."""
        for name, path in imports_of(statement):
            paths = self.imports.setdefault(name, [])
            paths += [path] * (path not in paths)  # a notebook's cell may be there twice
        binds = _binds(statement)
        names = binds | self._changed(statement)
        for name in names:
            before = self.definitions.setdefault(name, [])
            if before and name in binds and self._replaces(statement, name):
                before.clear()
            before.append(statement)
        return names

    def _replaces(self, statement: ast.stmt, name: str) -> bool:
        """Whether nothing that a name was bound to before can matter after a statement."""
        if not isinstance(statement, ast.Assign):
            return isinstance(statement, DEFINES)
        loads = _roots(statement)
        return name not in loads.union(*map(_roots, self._functions(loads)))

    def _changed(self, statement: ast.stmt) -> set[str]:
        """The names whose values a statement may change as it runs, in functions, too."""
        nodes = [*(run_by(statement) if self.is_script else walk([statement]))]
        names = {*self._touched(nodes)}
        if not self.is_script:
            return names
        functions = self._functions(node.id for node in nodes if isinstance(node, ast.Name))
        for function in functions:
            touched = {*self._touched([*ast.walk(function)])} & _roots(function)
            changed = (one for one in touched if one in self.imports or self._is_changeable(one))
            names |= {*changed} | _globals(function)
        if not isinstance(statement, DEFINES):
            self.hidden.update(*map(self.opaque, (statement, *functions)))
        names |= self._called_libraries(nodes)
        for name in (aliases := [*names]):  # which grows meanwhile
            for origin in (statement, *self.definitions.get(name, ())):
                others = {*bound_again(origin, name)}.difference(aliases)
                aliases += (o for o in others if o in self.imports or self._is_changeable(o))
        packages = {_top(self.imports[name][0]) for name in aliases if name in self.imports}
        alike = {name for name, (path, *_) in self.imports.items() if _top(path) in packages}
        return {*aliases} | alike

    def _is_changeable(self, name: str) -> bool:
        return not all(map(is_constant, self.definitions.get(name, ())))

    def _functions(self, roots: Iterable[str]) -> list[ast.stmt]:
        """The functions and classes that names stand for, and all that these name in turn."""
        functions: list[ast.stmt] = []
        for name in (reached := [*roots]):  # which grows meanwhile
            for origin in self.definitions.get(name, ()):
                is_function = isinstance(origin, DEFINES)
                functions += [origin] * is_function
                names = _roots(origin) if is_function else {*bound_again(origin, name)}
                reached += names.difference(reached)
        return functions

    def _touched(self, nodes: Sequence[ast.AST]) -> Iterator[str]:
        """The names that code sets parts of, whose methods it calls, or that it gives away."""
        for_effect = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.AugAssign):
                yield owner(node.target)
            elif isinstance(node, ast.Attribute | ast.Subscript):
                if not isinstance(node.ctx, ast.Load):
                    yield owner(node)
            elif isinstance(node, DEFINES):
                methods = (one for one in node.decorator_list if isinstance(one, ast.Attribute))
                yield from {*map(owner, methods)} & self.definitions.keys()
            elif isinstance(node, ast.Call) and self.is_script:
                yield from self._touched_by(node, is_for_effect=id(node) in for_effect)

    def _touched_by(self, call: ast.Call, *, is_for_effect: bool) -> Iterator[str]:
        """The names whose values a call may change: that of its method, or those it is given."""
        name, is_method = owner(call.func), isinstance(call.func, ast.Attribute)
        origins = self.definitions.get(name, ())
        if self._only_reads(call):
            return
        if name in _SETS and call.args:
            yield owner(call.args[0])
        elif (is_method and name not in self.imports and not hasattr(builtins, name)) or not all(
            isinstance(origin, DEFINES)
            for origin in origins  # as of `put = TABLE.append`
        ):
            yield name
        elif is_for_effect:
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            for node in itertools.chain(*map(ast.walk, given)):
                origins = self.definitions.get(getattr(node, "id", ""), ())
                if not all(isinstance(origin, FUNCTIONS) for origin in origins):
                    yield owner(node)

    def _only_reads(self, call: ast.Call) -> bool:
        """Whether a call is known to change nothing that it is given, or is of."""
        name = owner(call.func)
        if isinstance(call.func, ast.Attribute):
            return call.func.attr in _READS or _is_ours(self.imports.get(name, [""])[0])
        return name in _HARMLESS or _is_ours(self.imports.get(name, [""])[0])

    def _called_libraries(self, nodes: Iterable[ast.AST]) -> set[str]:
        """The names of modules whose functions are called for their effect, as to set a seed."""
        values = (node.value for node in nodes if isinstance(node, ast.Expr))
        calls = (value for value in values if isinstance(value, ast.Call))
        return {owner(call.func) for call in calls if not self._only_reads(call)} & {*self.imports}

    def opaque(self, statement: ast.stmt) -> Iterator[str]:
        """What a statement of a script uses that can't be read, by its path."""
        _, loads, imports, _ = _definition(statement)
        inside = Module(imports).imports if imports else {}
        for root, *attributes in loads if self.is_script else ():
            for path in inside.get(root) or self.imports.get(root) or [root]:
                dotted = ".".join((path, *attributes))
                if _OPAQUE.fullmatch(dotted) and (attributes or root not in self.definitions):
                    yield dotted

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
    texts, loads, imports, _ = zip(*map(_definition, module.definitions[name]), strict=True)
    if hidden := module.hidden.union(*map(module.opaque, module.definitions[name])):
        msg = (
            f"{name} runs with {', '.join(sorted(hidden))}, which hides what code does; expected "
            f"names and calls that can be read. Write them out, as in a dict of functions."
        )
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
    return _top(path) == _PACKAGE


def _top(path: str) -> str:
    return path.partition(".")[0]


@functools.cache
def _module(path: str) -> Module | None:
    """A module of autopar by its dotted path, or None if there is none."""
    place = _ROOT.joinpath(*path.split(".")[1:])
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if _is_ours(path) and file.is_file():
            return Module(ast.parse(file.read_text(encoding="utf-8")).body)
    return None


@functools.lru_cache(maxsize=64)
def read_script(*texts: str) -> Module:
    """A script, or the cells of a notebook."""
    statements: list[ast.stmt] = []
    for text in texts:
        with contextlib.suppress(SyntaxError):  # as of a cell with a magic command
            statements += ast.parse(text).body
    return Module(statements, is_script=True)


@functools.cache  # by identity, as stripping changes a statement
def _definition(statement: ast.stmt) -> tuple[str, set[Chain], Sequence[ast.stmt], CodeType]:
    """What a statement does, as text, the names it loads, its inner imports, and all as code."""
    imports = [n for n in ast.walk(statement) if isinstance(n, (ast.Import, ast.ImportFrom))]
    module = ast.Module([stripped(statement)], type_ignores=[])
    ast.fix_missing_locations(module)
    flags = __future__.annotations.compiler_flag  # annotations are text, and so load nothing
    code = compile(module, "<definition>", "exec", flags=flags, dont_inherit=True, optimize=0)
    return text_of(module.body), {*chains(code)}, imports, code


@functools.cache
def _binds(statement: ast.stmt) -> set[str]:
    """The global names that a statement binds, in functions, too."""
    if isinstance(statement, DEFINES) and not any(
        isinstance(n, ast.Global) for n in ast.walk(statement)
    ):
        return {statement.name}  # without compiling what no digest may need
    code = _definition(statement)[3]
    return {
        step.argval
        for part in codes(code)
        for step in dis.get_instructions(part)
        if step.opname in _BINDS and (part is code or step.opname.endswith("GLOBAL"))
    }


def _globals(function: ast.stmt) -> set[str]:
    """The names that a function binds for all."""
    return _binds(function) - {getattr(function, "name", "")}


def _roots(statement: ast.stmt) -> set[str]:
    """The global names that a statement loads."""
    return {chain[0] for chain in _definition(statement)[1]}
