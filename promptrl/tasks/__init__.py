"""Benchmarks as tasks: loading them, and splitting them so that nothing trained on is tested on."""

from promptrl.tasks.benchmark import Benchmark, LeftOut
from promptrl.tasks.loading import BENCHMARKS, load_benchmark
from promptrl.tasks.splits import Splits, SplitSettings, assert_disjoint, load_splits
from promptrl.tasks.task import (
    DEFERRED,
    AssertTest,
    CallTest,
    Comparison,
    Deferred,
    PytestFiles,
    PytestTest,
    StdinTest,
    Style,
    Task,
    Test,
    TestSuite,
)

__all__ = [
    "BENCHMARKS",
    "DEFERRED",
    "AssertTest",
    "Benchmark",
    "CallTest",
    "Comparison",
    "Deferred",
    "LeftOut",
    "PytestFiles",
    "PytestTest",
    "SplitSettings",
    "Splits",
    "StdinTest",
    "Style",
    "Task",
    "Test",
    "TestSuite",
    "assert_disjoint",
    "load_benchmark",
    "load_splits",
]
