"""Code that tries to pass without being right, to harm the machine, or to stay: each with its exact verdict."""

# ruff: noqa: E501 - programs on one line each

from __future__ import annotations

import os
from pathlib import Path

import pytest

from promptrl.execution import Candidate, Judge
from promptrl.tasks.task import AssertTest, CallTest, StdinTest
from tests.execution.helpers import ADD, asserting, outcomes, task, verdict

LEAVING = {
    "sys.exit at import": "import sys\ndef add(a, b): return a + b\nsys.exit(0)",
    "SystemExit at import": "def add(a, b): return a + b\nraise SystemExit",
    "quit at import": "def add(a, b): return a + b\nquit()",
    "exit at import": "def add(a, b): return a + b\nexit()",
    "KeyboardInterrupt at import": "def add(a, b): return a + b\nraise KeyboardInterrupt",
    "GeneratorExit at import": "def add(a, b): return a + b\nraise GeneratorExit",
    "sys.exit in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "SystemExit in the call": "def add(a, b): raise SystemExit(0)",
    "quit in the call": "def add(a, b): quit()",
}


@pytest.mark.parametrize("code", LEAVING.values(), ids=LEAVING.keys())
def test_leaving_by_exception_is_an_error(judge: Judge, code: str) -> None:
    found = verdict(judge, code)
    assert (str(found.status), outcomes(found)) == ("error", ["exception", "exception"])


CRASHES = {
    "os._exit at import": ("import os\ndef add(a, b): return a + b\nos._exit(0)", "exit code 0"),
    "os._exit in the call": ("import os\ndef add(a, b): os._exit(0)", "exit code 0"),
    "abort": ("import os\ndef add(a, b): os.abort()", "SIGABRT"),
    "kill itself": ("import os\ndef add(a, b): os.kill(os.getpid(), 9)", "SIGKILL"),
    "read address 0": ("import ctypes\ndef add(a, b): ctypes.string_at(0)", "SIGSEGV"),
    "recursion through C": (
        "import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(10**6)\n"
        "@lru_cache(None)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\ndef add(a, b): return f(999_000)",
        "SIGSEGV",
    ),
}


@pytest.mark.parametrize(("code", "sign"), CRASHES.values(), ids=CRASHES.keys())
def test_a_dead_process_is_a_crash_with_its_signal(judge: Judge, code: str, sign: str) -> None:
    found = verdict(judge, code)
    assert (str(found.status), outcomes(found)) == ("error", ["crashed", "crashed"])
    assert sign in found.results[0].detail


YES = "class Yes:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    __hash__ = object.__hash__\n"
LIES = {
    "equals everything": YES + "def add(a, b): return Yes()",
    "equals everything, in a list": YES + "def add(a, b): return [Yes()]",
    "int subclass": "class I(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef add(a, b): return I(7)",
    "str subclass": "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef add(a, b): return S('x')",
    "list subclass": "class L(list):\n    __eq__ = lambda s, o: True\n    __iter__ = None\ndef add(a, b): return L([9])",
    "zero difference": YES
    + "    __sub__ = __rsub__ = lambda s, o: 0\n    __abs__ = lambda s: 0\ndef add(a, b): return Yes()",
    "lying class name": "def add(a, b): return type('int', (), {'__eq__': lambda s, o: True, '__hash__': None})()",
    "metaclass": "class M(type):\n    __eq__ = lambda s, o: True\n    __hash__ = type.__hash__\n    mro = type.mro\n"
    "class I(metaclass=M): pass\ndef add(a, b): return I",
    "__class__ property": "class I:\n    __class__ = property(lambda s: int)\n    __eq__ = lambda s, o: True\n"
    "def add(a, b): return I()",
}


@pytest.mark.parametrize("code", LIES.values(), ids=LIES.keys())
def test_a_lying_object_is_wrong(judge: Judge, code: str) -> None:
    found = verdict(judge, code)
    assert (str(found.status), outcomes(found)) == ("failed", ["wrong", "wrong"])


def test_a_subclass_is_judged_by_its_plain_value(judge: Judge) -> None:
    code = "class I(int):\n    __eq__ = lambda s, o: False\n    __hash__ = int.__hash__\ndef add(a, b): return I(a + b)"
    assert str(verdict(judge, code).status) == "passed"


TAMPERING = {
    "builtins": "import builtins\nfor n in ('len', 'isinstance', 'type', 'set', 'map', 'max', 'min', 'list', 'print',"
    " 'getattr', 'iter', 'all', 'str', 'int', 'bytes', 'tuple', 'memoryview', 'BaseException', 'AssertionError'):\n"
    "    setattr(builtins, n, None)\n",
    "builtins emptied": "import builtins\nremove = delattr\nfor n in list(vars(builtins)): remove(builtins, n)\n",
    "sys.modules": "import sys\nsys.modules.clear()\n",
    "json": "import json, marshal, struct\njson.dumps = json.loads = marshal.loads = marshal.dumps = lambda *a, **k: '3'\n"
    "json.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *a, **k: '3'\nstruct.pack = None\n",
    "os": "import os, posix\nos.write = os.read = posix.write = posix.read = lambda *a: 99\nos._exit = print\n",
    "tolerances": "import math, sys\nmath.isclose = lambda *a, **k: True\n",
    "time": "import time, signal, resource\ntime.process_time = time.monotonic = lambda: 0\n"
    "signal.setitimer = signal.signal = lambda *a: None\n",
}


@pytest.mark.parametrize("code", TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_changes_no_verdict(judge: Judge, code: str) -> None:
    right = verdict(judge, code + "def add(a, b): return a + b")
    wrong = verdict(judge, code + "def add(a, b): return 0")
    assert (str(right.status), str(wrong.status)) == ("passed", "failed")


FORGERIES = {
    "records on every descriptor": (
        "import os, struct\ndef add(a, b):\n    for fd in range(3, 256):\n        for i in range(2):\n"
        "            try: os.write(fd, struct.pack('<iBdI', i, 5, 0.0, 0))\n"
        "            except OSError: pass\n    return 0"
    ),
    "noise on every descriptor": (
        "import os\ndef add(a, b):\n    for fd in range(3, 256):\n"
        "        try: os.write(fd, b'\\xff' * 400)\n        except OSError: pass\n    return 0"
    ),
    "encoder replaced through gc": (
        "import gc\ndef add(a, b):\n    for f in gc.get_objects():\n"
        "        if getattr(f, '__name__', '') in ('encode', 'send', 'call', 'pack_record'):\n"
        "            try: f.__code__ = (lambda *a: b'3').__code__\n            except Exception: pass\n    return 0"
    ),
    "frames": (
        "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
        "        for k in list(f.f_locals): f.f_globals[k] = 3\n        f = f.f_back\n    return 0"
    ),
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_record_is_never_worth_a_pass(judge: Judge, code: str) -> None:
    assert verdict(judge, code).tests_passed == 0


def test_assertions_cannot_be_deceived(judge: Judge) -> None:
    patched = (
        "import math, builtins\nmath.isclose = lambda *a, **k: True\nbuiltins.all = builtins.abs = lambda *a: 0\n"
        "class Yes:\n    __eq__ = __lt__ = __le__ = lambda s, o: True\n    __sub__ = lambda s, o: 0\n"
        "    __abs__ = lambda s: 0\ndef add(a, b): return Yes()"
    )
    tests = asserting(
        "import math\nassert math.isclose(add(1, 2), 3)", "assert add(1, 2) == 3", "assert abs(add(1, 2) - 3) < 1e-6"
    )
    assert verdict(judge, patched, *tests).tests_passed == 0
    forged = FORGERIES["records on every descriptor"]
    assert verdict(judge, forged, *tests).tests_passed == 0
    assert verdict(judge, "import os\ndef add(a, b): os._exit(0)", *tests).tests_passed == 0


def test_a_candidate_cannot_find_what_is_expected(judge: Judge) -> None:
    secret = 918_273_645
    code = (
        "import gc, sys\ndef add(a, b):\n    needle = '546372819'[::-1]\n"
        "    for o in gc.get_objects():\n        try: t = repr(o)\n        except Exception: continue\n"
        "        if needle in t: return int(needle)\n"
        "    f = sys._getframe().f_back\n    while f:\n"
        "        if needle in repr(f.f_locals) + repr(f.f_globals): return int(needle)\n        f = f.f_back\n    return 0"
    )
    found = verdict(judge, code, CallTest((1, 2), secret, reference_seconds=1.0))
    assert (str(found.status), outcomes(found)) == ("failed", ["wrong"])


@pytest.mark.parametrize(
    "look",
    [
        "os.listdir('/proc')",
        "os.listdir('/home') or 1/0",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "os.environ['SECRET_FOR_THE_TEST']",
        f"open({str(Path(__file__).resolve())!r}).read()",
        f"open({os.path.expanduser('~/.bashrc')!r}).read()",  # noqa: PTH111
        "__import__('promptrl')",
        "__import__('sandbox')",
        "__import__('pytest')",
    ],
)
def test_host_is_out_of_sight(judge: Judge, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_FOR_THE_TEST", "1")
    code = f"import os\ndef add(a, b):\n    x = {look}\n    return bool(x)"
    found = verdict(judge, code)
    if look == "os.listdir('/proc')":
        assert outcomes(found) == ["wrong", "wrong"]  # an empty folder
    else:
        assert outcomes(found) == ["exception", "exception"]


@pytest.mark.parametrize(
    "act",
    [
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "open('/usr/x', 'w')",
        "open('/x', 'w')",
        "os.unlink(os.__file__)",
        "os.rmdir('/tmp/work')",
        "os.mount('a', 'b')",
        "os.chroot('/tmp')",
        "os.setuid(0)",
        "os.sethostname('x')",
        "os.mknod('/tmp/d', 0o60600, 1)",
        "ctypes.CDLL(None).mount() and 1/0",
        "ctypes.CDLL(None).ptrace(16, 1, 0, 0) and 1/0",
        "ctypes.CDLL(None).unshare(0x10000000) and 1/0",
        "subprocess.run(['mount', '-t', 'tmpfs', 'x', '/tmp'], check=True)",
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    ],
)
def test_refused(judge: Judge, act: str) -> None:
    code = f"import socket, os, ctypes, subprocess, resource\ndef add(a, b):\n    {act}\n    return a + b"
    assert outcomes(verdict(judge, code)) == ["exception", "exception"]


def test_the_first_process_of_the_sandbox_cannot_be_killed(judge: Judge) -> None:
    code = (
        "import os, signal\ndef add(a, b):\n    for s in range(1, 65):\n"
        "        try: os.kill(1, s)\n        except OSError: pass\n    return a + b"
    )
    assert str(verdict(judge, code).status) == "passed"


RESOURCES = {
    "list of a billion": ("def add(a, b): return [0] * 10**9", "error", "exception"),
    "growing list": ("def add(a, b):\n    x = [0]\n    while True: x += x", "error", "exception"),
    "10 GB file": (
        "def add(a, b):\n    f = open('big', 'wb')\n    while True: f.write(bytes(2**20))",
        "error",
        "exception",
    ),
    "sparse file": ("def add(a, b):\n    open('big', 'wb').truncate(10 * 2**30)", "error", "exception"),
    "endless loop": ("def add(a, b):\n    while True: pass", "timeout", "timeout"),
    "loop that swallows": (
        "def add(a, b):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        "timeout",
        "timeout",
    ),
    "loop at import": ("while True: pass", "timeout", "timeout"),
    "sleep": ("import time\ndef add(a, b): time.sleep(600)", "timeout", "timeout"),
    "sleep, signals off": (
        "import time, signal\ndef add(a, b):\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n    time.sleep(600)",
        "timeout",
        "timeout",
    ),
    "huge power": ("def add(a, b): return (3 ** (10**7 + a)) ** 9 % 7", "timeout", "timeout"),
    "regex": ("import re\ndef add(a, b): return re.match('(a+)+$', 'a' * 60 + 'b')", "timeout", "timeout"),
    "handlers replaced": (
        "import signal\nfor s in (signal.SIGALRM, signal.SIGPROF): signal.signal(s, signal.SIG_IGN)\n"
        "def add(a, b):\n    while True: pass",
        "timeout",
        "timeout",
    ),
    "input()": ("def add(a, b): return input()", "error", "exception"),
}


@pytest.mark.parametrize(("code", "status", "outcome"), RESOURCES.values(), ids=RESOURCES.keys())
def test_hunger_is_limited(judge: Judge, code: str, status: str, outcome: str) -> None:
    patient = [CallTest((1, 2), 3, reference_seconds=3.0)] * 2  # filling memory takes its time
    found = verdict(judge, code, *(patient if outcome == "exception" else ADD))
    assert (str(found.status), outcomes(found)) == (status, [outcome, outcome])


def test_fork_bomb(judge: Judge) -> None:
    code = "import os\ndef add(a, b):\n    while True: os.fork()"
    found = verdict(judge, code)
    assert str(found.status) in ("error", "timeout")
    assert found.tests_passed == 0
    assert str(verdict(judge, "def add(a, b): return a + b").status) == "passed"


ODD_OUTPUT = {
    "NUL": ("'a\\0b'", "a\0b"),
    "lone surrogate": ("'\\ud800'", "\ud800"),
    "bytes that are no UTF-8": ("b'\\xff\\xfe'", b"\xff\xfe"),
    "10,000 digits": ("10 ** 10_000", 10**10_000),
    "deep nesting": ("[[[[[[1]]]]]]", [[[[[[1]]]]]]),
    "large list": ("list(range(300_000))", list(range(300_000))),
    "very large list": ("list(range(600_000))", list(range(600_000))),
    "very long text": ("'x' * 9_000_000", "x" * 9_000_000),
}


@pytest.mark.parametrize(("expression", "value"), ODD_OUTPUT.values(), ids=ODD_OUTPUT.keys())
def test_odd_output_is_judged(judge: Judge, expression: str, value: object) -> None:
    right = verdict(judge, f"def add(): return {expression}", CallTest((), value, reference_seconds=1.0))
    wrong = verdict(judge, f"def add(): return {expression}", CallTest((), [value], reference_seconds=1.0))
    assert (str(right.status), str(wrong.status)) == ("passed", "failed")


def test_values_without_end_or_form(judge: Judge) -> None:
    for body in ("x = []; x.append(x); return x", "return print", "return object()", "return (i for i in [3])"):
        assert outcomes(verdict(judge, f"def add(a, b):\n    {body}")) == ["wrong", "wrong"]


def test_printing_does_not_count(judge: Judge) -> None:
    code = (
        "import os, sys\ndef add(a, b):\n    for _ in range(200): print('x' * 2**20)\n"
        "    os.write(1, b'\\xff\\0'); sys.stderr.write('\\ud800')\n    return a + b"
    )
    assert str(verdict(judge, code, CallTest((1, 2), 3, reference_seconds=2.0)).status) == "passed"


def test_a_program_that_prints_too_much_or_breaks_its_output(judge: Judge) -> None:
    flood = "while True: print('x' * 2**20)"
    assert outcomes(verdict(judge, flood, StdinTest("", "x"))) == ["exception"]
    noise = "import os\nos.write(1, b'\\xff\\0\\xfe')"
    assert outcomes(verdict(judge, noise, StdinTest("", "x"))) == ["wrong"]


STAYING = {
    "subprocess": "import subprocess\nsubprocess.Popen(['sleep', '600'])\n",
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n",
    "daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        time.sleep(600)\n    os._exit(0)\n",
    "file": "import os\nos.makedirs('deep/er')\nopen('deep/er/f', 'w').write('x')\nos.chmod('deep/er', 0)\n"
    "os.chmod('deep', 0)\nopen('/tmp/g', 'w').close()\nos.symlink('/usr', 'link')\n",
    "descriptors": "import os\nfds = [os.open('/dev/null', 0) for _ in range(100)]\n",
}


def _traces() -> tuple[int, int, set[str]]:
    processes = sum(1 for entry in os.listdir("/proc") if entry.isdigit() and _is_ours(entry))  # noqa: PTH208
    temp = {name for name in os.listdir("/tmp") if name.startswith("promptrl-sandbox")}  # noqa: PTH208
    return processes, len(os.listdir("/proc/self/fd")), temp  # noqa: PTH208


def _is_ours(pid: str) -> bool:
    """Whether the process descends from this one."""
    own = str(os.getpid())
    while pid not in ("0", "1"):
        if pid == own:
            return True
        try:
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return False
    return False


@pytest.mark.parametrize("level", ["namespaces", "rlimits"])
def test_nothing_stays(level: str, request: pytest.FixtureRequest) -> None:
    judge = request.getfixturevalue("judge" if level == "namespaces" else "rlimits_judge")
    own = task(CallTest((1, 2), 3))
    code = [body + "def add(a, b): return a + b" for body in STAYING.values()]
    judge.judge([Candidate("def add(a, b): return a + b", own, own.base)] * 4)
    before = _traces()
    found = judge.judge([Candidate(code[number % len(code)], own, own.base) for number in range(200)])
    assert _traces() == before
    assert {str(each.status) for each in found} <= {"passed", "error"}
    look = "import os\ndef add(a, b): return os.listdir('.')"
    assert verdict(judge, look, CallTest((1, 2), [])).status == "passed"


def test_the_run_goes_on_after_each(judge: Judge) -> None:
    own = task(CallTest((1, 2), 3))
    good = "def add(a, b): return a + b"
    bad = ["exit()", "import os; os._exit(0)", "import os; os.kill(0, 9)", "raise KeyboardInterrupt"]
    mixed = [code for each in bad for code in (each, good)]
    found = judge.judge([Candidate(code, own, own.base) for code in mixed])
    assert [str(each.status) for each in found] == ["error", "passed"] * len(bad)


def test_an_assertion_beside_the_code_is_said_to_be_weaker() -> None:
    from promptrl.execution.asserting import needs_objects

    assert needs_objects(AssertTest("s = Stack()\nassert s.push(1) == [1]"))
    assert needs_objects(AssertTest("assert apply(lambda x: x, 1) == 1"))
    assert not needs_objects(AssertTest("import math\nassert math.isclose(area(1.0), 3.14, rel_tol=0.1)"))
    assert not needs_objects(AssertTest("assert sorted(f('a b'.split()).items()) == []"))


def test_a_candidate_cannot_find_the_text_of_assertions(judge: Judge) -> None:
    code = (
        "import gc, sys\ndef add(a, b):\n    seen = []\n"
        "    f = sys._getframe().f_back\n    while f:\n        seen += [f.f_locals, f.f_globals]\n"
        "        for v in f.f_locals.values(): seen.append(getattr(v, '__dict__', None))\n        f = f.f_back\n"
        "    seen += gc.get_objects()\n    return 0 if any('546372819'[::-1] in repr(o) for o in seen) else 3"
    )
    tests = asserting("assert add(1, 2) in (918273645, 3)", "assert add(1, 2) == 918273645 or add(2, 1) == 3")
    slow = tuple(AssertTest(test.source, reference_seconds=2.0) for test in tests)
    assert outcomes(verdict(judge, code, *slow)) == ["passed", "passed"]


def test_no_descriptor_of_a_candidate_leads_to_the_assertions(judge: Judge) -> None:
    code = (
        "import os\ndef add(a, b):\n    found = 0\n    for fd in range(3, 256):\n"
        "        try: found += b'918273645' in os.pread(fd, 10**6, 0)\n        except OSError: pass\n    return found"
    )
    tests = asserting("assert add(1, 2) != 918273645 and add(1, 2) == 0", "assert len([add(1, 2)]) == 1")
    assert outcomes(verdict(judge, code, *tests)) == ["passed", "passed"]


OWN_CLASS = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"


def test_an_answer_to_objects_is_compared_outside(judge: Judge) -> None:
    tests = asserting(
        "assert add([Pair(1, 2)], 4) == 3",
        "p = Pair(1, 2)\nassert 3 == add([p], 4)",
        "assert add(Pair(0, 1), 4) is None",
    )
    right = OWN_CLASS + "def add(p, n): return p[0].a + p[0].b if isinstance(p, list) else None"
    wrong = OWN_CLASS + "def add(p, n): return 4"
    assert outcomes(verdict(judge, right, *tests)) == ["passed", "passed", "passed"]
    assert outcomes(verdict(judge, wrong, *tests)) == ["wrong", "wrong", "wrong"]
    assert verdict(judge, OWN_CLASS + YES + "def add(p, n): return Yes()", *tests).tests_passed == 0
    forged = FORGERIES["records on every descriptor"]
    assert verdict(judge, OWN_CLASS + forged, *tests).tests_passed == 0


def test_what_an_assertion_on_objects_expects_is_not_inside(judge: Judge) -> None:
    code = OWN_CLASS + (
        "import sys\ndef add(p, n):\n    f, needle = sys._getframe().f_back, '546372819'[::-1]\n    while f:\n"
        "        if needle in repr(f.f_locals): return int(needle)\n        f = f.f_back\n    return 0"
    )
    assert outcomes(verdict(judge, code, *asserting("assert add(Pair(1, 2), 4) == 918273645"))) == ["wrong"]
