"""The types that MBPP+ lost in JSON, per task: which lists were tuples, sets, or texts complex numbers.

A rule names a task's numbers and what becomes of the arguments of one call. The rules restate what
EvalPlus 0.3.1 does when it loads the same file; a test compares the two where EvalPlus is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

Convert = Callable[[Any], object]


def restore_arguments(number: int) -> Callable[[list[object]], tuple[object, ...]]:
    """What gives the arguments of one call of task `Mbpp/<number>` their types back."""
    return _RULES.get(number, tuple)


def _every(convert: Convert) -> Convert:
    """Applied to each item of a list, which stays a list."""
    return lambda items: [convert(item) for item in items]


def _all_arguments(convert: Convert) -> Callable[[list[object]], tuple[object, ...]]:
    return lambda args: tuple(convert(argument) for argument in args)


def _argument(position: int, convert: Convert) -> Callable[[list[object]], tuple[object, ...]]:
    return lambda args: tuple(convert(item) if index == position else item for index, item in enumerate(args))


def _tuple_of_tuples(items: Iterable[Any]) -> tuple[object, ...]:
    return tuple(tuple(item) for item in items)


def _tuple_if_list(item: object) -> object:
    return tuple(item) if isinstance(item, list) else item


def _tuples_all_through(item: object) -> object:
    return tuple(_tuples_all_through(inner) for inner in item) if isinstance(item, list) else item


def _set_or_empty_dict(item: object) -> object:
    # An empty pair of braces was written as a set's place, and is a dict in Python.
    return set(item) if isinstance(item, list) and item else {}


def _number_and_complex(args: list[Any]) -> tuple[object, ...]:
    return float(args[0]), complex(args[1])


_GROUPS: Final[tuple[tuple[tuple[int, ...], Callable[[list[Any]], tuple[object, ...]]], ...]] = (
    (
        (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
        _all_arguments(tuple),
    ),
    ((63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780), _all_arguments(_every(tuple))),
    ((259, 401, 445), _all_arguments(_tuple_of_tuples)),
    ((278,), _all_arguments(lambda items: tuple(_tuple_if_list(item) for item in items))),
    ((580, 615, 791), _all_arguments(_tuples_all_through)),
    ((75, 413, 444, 753), _argument(0, _every(tuple))),
    ((250, 307, 405, 446, 617, 720, 763, 808), _argument(0, tuple)),
    ((106, 750), _argument(1, tuple)),
    ((115,), _argument(0, _every(_set_or_empty_dict))),
    ((722,), _argument(0, lambda table: {key: tuple(value) for key, value in table.items()})),
    ((252,), _argument(0, complex)),
    ((124,), _number_and_complex),
)
_RULES: Final = {number: convert for numbers, convert in _GROUPS for number in numbers}
