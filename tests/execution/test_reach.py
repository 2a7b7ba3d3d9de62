"""What a candidate could change beyond itself: limits of its parent, rights of files, what is left for the next one."""

# ruff: noqa: E501 - programs on one line each

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from promptrl.execution import Judge, SandboxSettings, Status
from promptrl.execution.sandbox import protocol
from promptrl.execution.sandbox.clearing import empty_folder
from promptrl.tasks.task import CallTest
from tests.execution.helpers import outcomes, verdict

RIGHT = "def add(a, b): return a + b"
CALL = "import ctypes\ncall = ctypes.CDLL(None, use_errno=True).syscall\n"
LIMITS_OF_OTHERS = {
    "address space": "import os, resource\ndef add(a, b):\n    resource.prlimit(os.getppid(), resource.RLIMIT_AS, (150 << 20,) * 2)\n    return a + b",
    "processes": "import os, resource\ndef add(a, b):\n    resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (0, 0))\n    return a + b",
    "open files": "import os, resource\ndef add(a, b):\n    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\n    return a + b",
    "own pid": "import os, resource\ndef add(a, b):\n    resource.prlimit(os.getpid(), resource.RLIMIT_FSIZE)\n    return a + b",
}


@pytest.mark.parametrize("level", ["judge", "rlimits_judge"])
@pytest.mark.parametrize("code", LIMITS_OF_OTHERS.values(), ids=LIMITS_OF_OTHERS.keys())
def test_limits_of_other_processes_stay(level: str, code: str, request: pytest.FixtureRequest) -> None:
    judge: Judge = request.getfixturevalue(level)
    found = verdict(judge, code)
    assert outcomes(found) == ["exception", "exception"]
    assert "PermissionError" in found.results[0].detail
    assert str(verdict(judge, RIGHT).status) == "passed"


def test_own_limits_can_be_read_and_lowered(judge: Judge) -> None:
    code = (
        "import resource\ndef add(a, b):\n    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard - 1))\n    return a + b"
    )
    assert str(verdict(judge, code).status) == "passed"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("number", [142, 314, 251, 256, 279, 440, 448], ids=str)
def test_scheduling_of_others_is_refused(judge: Judge, number: int) -> None:
    code = CALL + f"def add(a, b): return (call({number}, 1, 0, 0), ctypes.get_errno())"
    assert outcomes(verdict(judge, code, CallTest((1, 2), (-1, 1)))) == ["passed"]


def test_files_that_no_limit_counts_are_refused(judge: Judge) -> None:
    code = "import os\ndef add(a, b): return os.memfd_create('x')"
    assert "PermissionError" in verdict(judge, code).results[0].detail


METADATA = (
    "os.chmod({path!r}, 0)",
    "os.chown({path!r}, -1, -1)",
    "os.lchown({path!r}, -1, -1)",
    "os.utime({path!r}, (1, 1))",
    "os.setxattr({path!r}, 'user.x', b'1')",
    "os.removexattr({path!r}, 'user.x')",
    "os.chmod('.', 0o700)",
)


@pytest.mark.parametrize("act", METADATA)
def test_rights_of_files_stay_without_namespaces(rlimits_judge: Judge, act: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    before = path.stat()
    code = f"import os\ndef add(a, b):\n    {act.format(path=str(path))}\n    return a + b"
    assert "PermissionError" in verdict(rlimits_judge, code).results[0].detail
    assert path.stat() == before


@pytest.mark.parametrize("command", [8, 10, 15])
def test_no_signals_by_way_of_descriptors_without_namespaces(rlimits_judge: Judge, command: int) -> None:
    code = (
        "import fcntl, os, struct\ndef add(a, b):\n    r, w = os.pipe()\n"
        f"    fcntl.fcntl(r, {command}, struct.pack('ii', 1, os.getpid()) if {command} == 15 else os.getpid())\n    return a + b"
    )
    assert "PermissionError" in verdict(rlimits_judge, code).results[0].detail


DEEP = (
    "import os\ndef add(a, b):\n    for _ in range(1200):\n        os.mkdir('d')\n        os.chdir('d')\n"
    "    open('f', 'w').close()\n    return a + b"
)


@pytest.mark.parametrize("level", ["judge", "rlimits_judge"])
def test_a_deep_folder_is_removed(level: str, request: pytest.FixtureRequest) -> None:
    judge: Judge = request.getfixturevalue(level)
    assert str(verdict(judge, DEEP, CallTest((1, 2), 3, reference_seconds=1.0)).status) == "passed"
    look = "import os\ndef add(a, b): return os.listdir('.')"
    assert str(verdict(judge, look, CallTest((1, 2), [])).status) == "passed"


def test_emptying_a_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "folder"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/c/file").write_text("x")
    (folder / "moved-0").mkdir()
    (folder / "stay").mkdir()
    (folder / "a/link").symlink_to(outside)
    (folder / "a/b/c").chmod(0)
    (folder / "a").chmod(0)
    empty_folder(str(folder), keep=str(folder / "stay"))
    assert [path.name for path in folder.iterdir()] == ["stay"]
    assert (outside / "kept").read_text() == "x"


def test_nothing_of_the_candidate_before_is_in_the_shared_memory(judge: Judge) -> None:
    first = "def add(a, b): return '918' + '273645' + str(a)"
    assert outcomes(verdict(judge, first)) == ["wrong", "wrong"]
    look = (
        "import sys\ndef add(a, b):\n    boxes, f = [], sys._getframe()\n    while f:\n"
        "        boxes += [v.outbox.memory for v in f.f_locals.values() if getattr(v, 'outbox', None)]\n        f = f.f_back\n"
        "    return [len(boxes) > 0, any(b'918273645' in m[:] for m in boxes)]"
    )
    found = verdict(judge, look, CallTest((1, 2), [True, False]))
    assert outcomes(found) == ["passed"], found.results[0].detail


def test_an_outbox_is_wiped() -> None:
    box = protocol.Outbox()
    assert box.append(b"secret")
    assert box.take() == b"secret"
    box.reset()
    assert not box.memory[:].strip(b"\0")


def test_packages_are_found_wherever_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    # Below /tmp, which a candidate has one of its own of: where a clone with its environment may well be.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        (folder / "lent_package").mkdir()
        (folder / "lent_package" / "__init__.py").write_text("ONE = 1\n")
        monkeypatch.syspath_prepend(folder)
        settings = SandboxSettings(workers=1, packages=("lent_package",))
        with Judge(settings) as judge:
            code = "import lent_package\ndef add(a, b):\n    return a + b + lent_package.ONE - 1"
            assert verdict(judge, code).status is Status.PASSED
    finally:
        shutil.rmtree(folder)
