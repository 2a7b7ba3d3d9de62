"""Which statements of a test can fail because of the answer: a test that cannot would give any answer full marks.

Nothing is run. A name depends on the answer where the test does not define it itself (the entry point, other
functions of the answer), or where it is bound, or may be changed, by a statement that reads such a name.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import Final

_BUILTINS: Final = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_CATCHES: Final = frozenset({"AssertionError", "Exception", "BaseException"})


class Dependence:
    """What is known of a test's statements.

    Args:
        statements: The body of the test.
        callee: The name by which it calls the answer; it may be that of a builtin function.
        given: What runs before it (set-up code, helpers).
    """

    def __init__(self, statements: Sequence[ast.stmt], callee: str, given: Sequence[ast.stmt] = ()) -> None:
        self.statements = list(statements)
        self._callee = callee
        body = [*given, *statements]
        bound = {name for node in body for name in _bound(node)}
        read = {name for node in body for name in _read(node)}
        free = (read - bound - _BUILTINS) | ({callee} - bound)
        # What a function of the test is handed may come from the answer.
        free |= {part.arg for node in body if isinstance(node, _Definition) for part in _arguments(node)}
        units = [unit for node in body for unit in _units(node)]
        # Two readings: by binding alone, and with whatever a call may have changed in place.
        self.direct = _spread(free, [(_read(unit), _bound(unit)) for unit in units])
        self.touched = _spread(free, [(_read(unit), _bound(unit) | _read(unit)) for unit in units]) | self.direct
        self._definitions = {node.name: node for node in body if isinstance(node, _Definition)}

    def can_fail(self, statement: ast.stmt) -> bool:
        """Whether running the statement may raise because of what the answer does."""
        return any(True for _ in self._checks([statement], set()))

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement that can fail reads the answer itself, and leaves nothing that a later one needs."""
        if not _read(statement) & self.direct:
            return False
        later = self.statements[self.statements.index(statement) + 1 :]
        return not any(_bound(statement) & _needed(node) for node in later)

    def _checks(self, statements: Sequence[ast.stmt], open_calls: set[str]) -> Iterator[ast.stmt]:
        """The asserts and raises that are reached and depend on the answer."""
        for node in statements:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    continue  # reached only where it is called
                case ast.Assert(test=test):
                    reads = _read(test) & self.touched
                    vain = always_true(test) or (reads == {self._callee} and _never_calls(test, self._callee))
                    if not vain and (reads or isinstance(test, ast.Constant)):
                        yield node
                case ast.Raise():
                    yield node
                case ast.If(test=test, body=body, orelse=orelse):
                    if not _is_false(test):
                        yield from self._branch(test, body, open_calls)
                    if not always_true(test):
                        yield from self._branch(test, orelse, open_calls)
                case ast.While(test=test, body=body, orelse=orelse):
                    if not _is_false(test):
                        yield from self._branch(test, body, open_calls)
                    yield from self._branch(test, orelse, open_calls)
                case ast.For(iter=items, body=body, orelse=orelse) | ast.AsyncFor(iter=items, body=body, orelse=orelse):
                    if not (isinstance(items, ast.List | ast.Tuple) and not items.elts):
                        yield from self._checks(body, open_calls)
                    yield from self._checks(orelse, open_calls)
                case ast.With(body=body) | ast.AsyncWith(body=body):
                    yield from self._checks(body, open_calls)
                case ast.Match(cases=cases):
                    for case in cases:
                        yield from self._checks(case.body, open_calls)
                case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                    silent = any(
                        _catches(handler) and not any(self._checks(handler.body, set())) for handler in handlers
                    )
                    if not silent:
                        yield from self._checks(body, open_calls)
                    if _read(ast.Module(list(body), [])) & self.touched:
                        for part in (*(handler.body for handler in handlers), orelse):
                            yield from self._checks(part, open_calls)
                    yield from self._checks(final, open_calls)
            yield from self._called(node, open_calls)

    def _branch(self, test: ast.expr, body: Sequence[ast.stmt], open_calls: set[str]) -> Iterator[ast.stmt]:
        """The checks of a branch; a bare `raise` or `assert False` counts where the answer decides on the branch."""
        decided = bool(_read(test) & self.touched) or any(_read(node) & self.touched for node in body)
        for check in self._checks(body, open_calls):
            if decided or not (isinstance(check, ast.Raise) or isinstance(check.test, ast.Constant)):  # type: ignore[attr-defined]
                yield check

    def _called(self, node: ast.stmt, open_calls: set[str]) -> Iterator[ast.stmt]:
        if isinstance(node, ast.Expr) and not any(isinstance(part, ast.Call) for part in ast.walk(node)):
            return  # `test` without brackets
        names = {name for part in _own_expressions(node) for name in _read(part)}
        for name in sorted(names & self._definitions.keys() - open_calls):
            definition = self._definitions[name]
            inner = definition.body
            if isinstance(definition, ast.ClassDef):
                inner = [line for part in inner for line in (part.body if isinstance(part, _Definition) else [part])]
            yield from self._checks(inner, open_calls | {name})


def always_true(test: ast.expr) -> bool:
    """Whether a condition holds whatever its parts are: `(f(1) == 2, "message")`, `1`, `x or True`."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return any(not isinstance(item, ast.Starred) for item in items)
        case ast.Dict(keys=keys):
            return any(key is not None for key in keys)
        case ast.Lambda() | ast.GeneratorExp():
            return True
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(map(always_true, values))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(map(always_true, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_false(operand)
    return False


def _never_calls(test: ast.expr, name: str) -> bool:
    """Whether a function is only looked at: `assert f`, `callable(f)`, `f is not None`, `hasattr(f, "x")`."""
    return not any(
        isinstance(node, ast.Call)
        and name in _read(node)
        and not (isinstance(node.func, ast.Name) and node.func.id in ("callable", "hasattr", "isinstance", "type"))
        for node in ast.walk(test)
    )


def holds_tuple_assert(statements: Sequence[ast.stmt]) -> bool:
    """Whether an assert is on a tuple, which is true whatever it holds: `assert (f(1) == 2, "message")`."""
    return any(
        isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and bool(node.test.elts)
        for statement in statements
        for node in ast.walk(statement)
    )


def _is_false(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and not test.value


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _CATCHES) for kind in kinds)


def _spread(names: set[str], units: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """The names, and all that units which read one of them reach, until nothing new is found."""
    found = set(names)
    waiting = list(units)
    while reached := [unit for unit in waiting if unit[0] & found]:
        waiting = [unit for unit in waiting if not unit[0] & found]
        for _, reaches in reached:
            found |= reaches - _BUILTINS
    return found


def _arguments(node: ast.AST) -> Iterator[ast.arg]:
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (item for item in ast.walk(part.args) if isinstance(item, ast.arg) and item.arg != "self")


def _units(node: ast.stmt) -> Iterator[ast.AST]:
    """The simple statements within a statement, and the heads of the compound ones."""
    if isinstance(node, _Definition):
        # What a function is given may come from the answer, and so may whatever it gives back.
        yield node
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield ast.Tuple([node.target, node.iter], ast.Load())
    elif not any(isinstance(child, ast.stmt) for child in ast.iter_child_nodes(node)):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _units(child)
        elif isinstance(child, ast.withitem):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            for inner in child.body:
                yield from _units(inner)


def _own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.withitem))


def _read(node: ast.AST) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Store)}
    return names | _changed(node)


def _changed(node: ast.AST) -> set[str]:
    """Names that `x += 1` and the like read without saying so."""
    changes = (part.target for part in ast.walk(node) if isinstance(part, ast.AugAssign))
    return {target.id for target in changes if isinstance(target, ast.Name)}


def _needed(node: ast.AST) -> set[str]:
    """Names that a statement reads and does not bind itself."""
    return (_read(node) - _bound(node)) | _changed(node)


def _bound(node: ast.AST) -> set[str]:
    names: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
            case ast.ExceptHandler(name=str(name)) | ast.arg(arg=name):
                names.add(name)
            case (
                ast.Attribute(value=ast.Name(id=name), ctx=ast.Store())
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store())
            ):
                names.add(name)
    return names
