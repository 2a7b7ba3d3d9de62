"""What a task is: a specification for the code model and the tests that decide whether its code is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from promptrl.errors import TaskError

Style = Literal["function", "stdin"]


class Comparison(StrEnum):
    """How a returned value is compared with the expected one (the rules of EvalPlus 0.3.1)."""

    EQUAL = "equal"
    """Equal plain values; float leaves within the test's tolerance."""
    SET = "set"
    """Equal as sets: the order and the counts of the answer do not matter."""
    NOT_NONE = "not_none"
    """Only whether a value is None decides: `expected` says whether one must come (True) or not (False).

    A bool that comes back is compared with `expected` itself, as EvalPlus does for matches turned into bools.
    """
    TRUTH = "truth"
    """Only whether the answer is true decides: `bool(answer) == expected`, for `assert f(x)` and `assert not f(x)`."""
    WITHIN = "within"
    """`abs(answer - expected) <= atol` as it stands: any type of number will do, and no other tolerance is added."""
    BELOW = "below"
    """`abs(answer - expected) < atol` as it stands."""
    POLYNOMIAL_ROOT = "polynomial_root"
    """The answer is a root of the polynomial whose coefficients are the first argument (HumanEval/32)."""


class Deferred:
    """Stands for an expected value that the canonical solution has yet to compute."""

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED: Final = Deferred()


@dataclass(frozen=True, slots=True)
class CallTest:
    """Calls the entry point with `args` and compares what it returns; only `args` ever enter the sandbox."""

    args: tuple[object, ...]
    expected: object = DEFERRED
    comparison: Comparison = Comparison.EQUAL
    atol: float = 0.0
    alternatives: tuple[object, ...] = ()
    """Further values that are accepted too."""
    float_leaves: bool = False
    """Whether the tolerance holds for every float in the expected value, however deep; where False, EvalPlus's rule."""
    reference_seconds: float | None = None
    """What the canonical solution took on this host, in seconds; bounds what a candidate may take."""
    payload: bytes | None = field(default=None, repr=False, compare=False)
    """`expected` as the sandbox wrote it, where it was computed there: the same bytes again are the same value."""


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Statements run whole inside the sandbox, after `setup`, in a namespace that sees the candidate's names.

    Used where a test is not of the form call → expected value; passes when nothing is raised.
    """

    source: str
    setup: str = ""
    reference_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StdinTest:
    """Runs the candidate as a program (`__main__`) with `stdin` and compares what it prints."""

    stdin: str
    expected_stdout: str
    reference_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PytestFiles:
    """A user's own test files, as pytest is to find them.

    Attributes:
        module: The name under which the tests import the candidate.
        files: Path below the tests' common folder, and content; conftest.py and data files included.
        targets: The paths that pytest is given.
    """

    module: str
    files: tuple[tuple[str, bytes], ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PytestTest:
    """One test case that pytest itself runs, inside the sandbox and beside the candidate.

    Unlike the other kinds it shares the candidate's process: trust it as far as the candidate is no adversary.
    """

    node_id: str
    """Pytest's own name of it, such as `test_median.py::test_even[case0]`."""
    files: PytestFiles = field(repr=False)
    reference_seconds: float | None = None


Test = CallTest | AssertTest | StdinTest | PytestTest


@dataclass(frozen=True, slots=True)
class TestSuite:
    """A named, ordered, never empty tuple of tests.

    Raises:
        TaskError: when `tests` is empty; a task without tests could only be "passed" by mistake.
    """

    __test__ = False  # not a test class of pytest

    name: str
    tests: tuple[Test, ...]

    def __post_init__(self) -> None:
        if not self.tests:
            raise TaskError(f"test suite {self.name!r} holds no tests; a suite needs at least one")

    def __len__(self) -> int:
        return len(self.tests)

    def __iter__(self) -> Iterator[Test]:
        return iter(self.tests)


@dataclass(frozen=True, slots=True)
class Task:
    """One programming problem.

    `instruction` is the natural-language part that operators may change; `contract` is the part that
    they never touch (signature, examples, input and output format). `stub` is code that an answer
    consisting only of a function body continues (HumanEval's prompt); empty where there is none.
    `canonical_solution` is a complete program. `base` holds the tests shown or known to the method,
    `plus` the further tests that only a report may use.
    """

    task_id: str
    benchmark: str
    instruction: str
    contract: str
    base: TestSuite
    plus: TestSuite | None = None
    style: Style = "function"
    entry_point: str | None = None
    canonical_solution: str = ""
    stub: str = ""
    setup: str = ""
    """Code put before every candidate of this task (MBPP's `test_setup_code`)."""
    kept_names: tuple[str, ...] = ()
    """Names of the stub that the code of an answer has to have too, since the tests may ask for them."""
    metadata: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        """Instruction and contract together: what tells two tasks apart when looking for copies."""
        return f"{self.instruction}\n{self.contract}"
