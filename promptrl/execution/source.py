"""Questions about Python source text, answered by Python's own parser and never by running it."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

BUILTIN_NAMES: Final = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse(text: str) -> ast.Module | None:
    """The tree of a text that compiles, or None; `return` outside a function and the like do not compile."""
    return check(text)[0]


@lru_cache(maxsize=64)
def check(text: str) -> tuple[ast.Module | None, str]:
    """The tree of a text that compiles, or None and the syntax error in words with its line, counted from 1.

    Kept for the last few texts, for the same blocks are asked about more than once; leave the trees unchanged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in an answer is the model's business
            tree = ast.parse(text)
            compile(tree, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return None, f"{error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, f"not parsable: {type(error).__name__}: {error}"
    return tree, ""


def bound_names(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that statements bind at the level of the module: definitions, imports, assignments."""
    names: set[str] = set()
    for node in _module_level(statements):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import():
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            case ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
    return names


def _module_level(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Every node outside the bodies of functions, classes and comprehensions."""
    pending: list[ast.AST] = list(statements)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (Definition, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            pending.extend(ast.iter_child_nodes(node))


def used_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name that is read anywhere in the nodes, function bodies included."""
    return {
        node.id
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Load, ast.Del))
    }


def module_names_read(node: ast.AST) -> set[str]:
    """Names of the module that a node reads: what its functions have of their own does not count.

    Where the node is nested too deeply to tell, every name that it reads counts.
    """
    try:
        return _names_read(node)
    except RecursionError:
        return used_names([node])


def _names_read(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        arguments = node.args
        own = {item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        own |= {item.arg for item in (arguments.vararg, arguments.kwarg) if item}
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        shared: set[str] = set()
        if not isinstance(node, ast.Lambda):
            own |= bound_names(node.body)
            shared = {
                name for inner in _module_level(node.body) if isinstance(inner, ast.Global) for name in inner.names
            }
        inside = {name for inner in body for name in _names_read(inner)} - own
        outside = [child for child in ast.iter_child_nodes(node) if not any(child is inner for inner in body)]
        return inside | shared | {name for child in outside for name in _names_read(child)}
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        own = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
        return {name for child in ast.iter_child_nodes(node) for name in _names_read(child)} - own
    if isinstance(node, ast.Name):
        return set() if isinstance(node.ctx, ast.Store) else {node.id}
    return {name for child in ast.iter_child_nodes(node) for name in _names_read(child)}


def missing_names(tree: ast.Module) -> set[str]:
    """Names that are read somewhere in the module and bound nowhere in it, builtins aside.

    A name bound in one function and read in another counts as bound: the aim is to know which import or
    helper was forgotten, and adding one too few only leaves the answer as the model gave it.
    """
    bound: set[str] = set()
    read: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            continue
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound |= bound_names([node])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.MatchMapping(rest=str(name)):
                bound.add(name)
        pending.extend(ast.iter_child_nodes(node))
    return read - bound - BUILTIN_NAMES


def is_trivial(node: ast.AST) -> bool:
    """Whether a definition is only a stub: a docstring, `pass`, `...` or `raise NotImplementedError`."""
    return isinstance(node, Definition) and all(_does_nothing(statement) for statement in node.body)


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False


def definition_of(tree: ast.Module, name: str) -> ast.AST | None:
    """What defines `name`: a function, class or lambda of the module, or a method of one of its classes.

    The last one that does something wins; a stub is given back only where there is nothing else.
    """
    stub: ast.AST | None = None
    for node in reversed(list(_top_level(tree.body))):
        found: ast.AST | None = None
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                found = node
            case ast.Assign(targets=targets) if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                found = node
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr()) if target == name:
                found = node
            case ast.ClassDef():
                methods = (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)))
                found = next((method for method in methods if method.name == name), None)
        if found is not None and not is_trivial(found):
            return found
        stub = stub or found
    return stub


def _top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of the module, looking into `if`, `try` and `with` at its top, but not into main guards."""
    pending = list(statements)[::-1]
    while pending:
        statement = pending.pop()
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)) and not is_main_guard(statement):
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            pending.extend(reversed(inner))


def is_main_guard(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`, either way round."""
    match statement:
        case ast.If(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            names = {part.id for part in (left, right) if isinstance(part, ast.Name)}
            values = {part.value for part in (left, right) if isinstance(part, ast.Constant)}
            return names == {"__name__"} and values == {"__main__"}
    return False


def without_demos(text: str, tree: ast.Module, *, entry_point: str) -> str:
    """The text of a function's module without what only shows or tests the function.

    Kept: imports, definitions, constants, and statements that prepare a name which kept code uses, be it by
    calling a function of the module that does. Dropped: main guards, asserts, other bare calls and prints, test
    runners, stub definitions of the entry point beside a real one, whatever reads standard input, and results
    of the module's own functions that nothing uses.
    """
    kept = _needed(tree.body, entry_point)
    dropped = [node for node in tree.body if id(node) not in kept]
    return _cut(text, tree.body, dropped) if dropped else text


def _needed(body: list[ast.stmt], entry_point: str) -> set[int]:
    """The ids of the statements to keep."""
    kept: set[int] = set()
    real = any(_defines(node, entry_point) and not is_trivial(node) for node in body)
    own = {node.name for node in body if isinstance(node, Definition)}
    prepared = _Preparations(body, entry_point)
    for node in body:
        if isinstance(node, (Definition, ast.Import, ast.ImportFrom)):
            keep = not _reads_input(node) or _defines(node, entry_point)
            keep = keep and not (real and _defines(node, entry_point) and is_trivial(node))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            keep = not _reads_input(node) and not used_names([node]) & own
        else:
            keep = _sets_limit(node)
        if keep:
            kept.add(id(node))
    undecided = [node for node in body if id(node) not in kept and not _never_needed(node) and prepared.by(node)]
    reads = {id(node): module_names_read(node) for node in body} if undecided else {}
    while True:
        used = {entry_point}.union(*(names for key, names in reads.items() if key in kept))
        more = [node for node in undecided if id(node) not in kept and prepared.by(node) & used]
        if not more:
            return kept
        kept.update(id(node) for node in more)


def _defines(node: ast.stmt, name: str) -> bool:
    return isinstance(node, Definition) and node.name == name


def _never_needed(node: ast.stmt) -> bool:
    return is_main_guard(node) or isinstance(node, (ast.Assert, Definition)) or _reads_input(node) or _runs_tests(node)


def _runs_tests(node: ast.stmt) -> bool:
    """`unittest.main()`, `doctest.testmod()` and the like, which may end the program."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name))):
            return (module, name) in (("unittest", "main"), ("pytest", "main"), ("doctest", "testmod"))
    return False


def _reads_input(node: ast.stmt) -> bool:
    """Whether a statement reads standard input when the module is loaded, where there is none to read."""
    loaded: list[ast.stmt] = [node]
    if isinstance(node, ast.ClassDef):
        loaded = node.body
    heads: list[ast.AST] = [
        part
        for inner in _module_level(loaded)
        if isinstance(inner, Definition)
        for part in (*inner.decorator_list, getattr(inner, "args", None))
        if part is not None
    ]
    for inner in (*_module_level(loaded), *(part for head in heads for part in ast.walk(head))):
        match inner:
            case ast.Name(id="input" | "stdin", ctx=ast.Load()) | ast.Attribute(attr="stdin"):
                return True
    return False


def _sets_limit(node: ast.stmt) -> bool:
    """`sys.setrecursionlimit(n)`: a call at the top that a right solution may need."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="setrecursionlimit") | ast.Name(id="setrecursionlimit"))):
            return True
    return False


class _Preparations:
    """Which names of the module its statements prepare, also by calling one of its functions."""

    def __init__(self, body: Sequence[ast.stmt], entry_point: str) -> None:
        self._functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        self._entry_point = entry_point

    def by(self, node: ast.stmt) -> set[str]:
        """The names that a statement prepares."""
        names = _prepared_names(node)
        for inner in _module_level([node]):
            match inner:
                case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in self._functions:
                    names |= self._through(name)
        return names

    def _through(self, name: str) -> set[str]:
        """The names of the module that a function changes, or those that it calls.

        None where it calls the entry point, which makes it a demonstration, or reads standard input.
        """
        found: set[str] = set()
        seen: set[str] = set()
        pending = [name]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            function = self._functions[name]
            used = used_names(function.body)
            if self._entry_point in used | seen or used & {"input", "stdin"}:
                return set()
            shared = {part for inner in ast.walk(function) if isinstance(inner, ast.Global) for part in inner.names}
            arguments = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
            changed = {part for statement in function.body for part in _prepared_names(statement)}
            found |= shared | (changed - bound_names(function.body) - arguments)
            pending += used & self._functions.keys()
        return found


def _prepared_names(node: ast.stmt) -> set[str]:
    """Names that a statement binds, or changes by a method, an item or an attribute."""
    names = bound_names([node])
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Attribute(value=value)):
                names.add(_root(value))
            case ast.Subscript(value=value, ctx=ast.Store()) | ast.Attribute(value=value, ctx=ast.Store()):
                names.add(_root(value))
    return names - {""}


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _cut(text: str, body: list[ast.stmt], dropped: Collection[ast.stmt]) -> str:
    """The text without some of the module's statements; comments and everything else stay as they are."""
    lines = text.split("\n")
    gone = {id(node) for node in dropped}
    kept_lines = {line for node in body if id(node) not in gone for line in _line_numbers(node)}
    for node in reversed(body):
        if id(node) not in gone:
            continue
        numbers = _line_numbers(node)
        if kept_lines.isdisjoint(numbers):
            for number in numbers:
                lines[number] = ""
        else:
            # Shares a line with a statement that stays (`import math; print(1)`).
            _blank(lines, node)
    return "\n".join(lines)


def _line_numbers(node: ast.stmt) -> range:
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    return range(first - 1, node.end_lineno or node.lineno)


def _blank(lines: list[str], node: ast.stmt) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Column offsets count bytes of UTF-8.
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    for number in range(first, last + 1):
        lines[number] = ""
    lines[first] = f"{head}pass{tail}"
