"""What keeps candidates in on this machine, for people to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from promptrl.errors import SandboxError
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.worker import Setup, Worker


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """The strongest isolation that this machine allows, found by setting it up once."""

    level: Literal["namespaces", "rlimits", "none"]
    active: tuple[str, ...]
    """Layers in force, for example `pid namespace`, `seccomp`, `landlock (ABI 7)`, `rlimits`."""
    missing: dict[str, str]
    """Layers not in force, each with the reason."""


def isolation_level(settings: SandboxSettings | None = None) -> IsolationReport:
    """Start one sandbox and report what holds it; never raises.

    Level `namespaces` is what `isolation: auto` uses; level `rlimits` has to be asked for by name; level `none` means
    that no sandbox starts at all.
    """
    base = settings or SandboxSettings()
    missing: dict[str, str] = {}
    wanted: tuple[Literal["namespaces", "rlimits"], ...] = (
        ("rlimits",) if base.isolation == "rlimits" else ("namespaces", "rlimits")
    )
    for isolation in wanted:
        try:
            worker = Worker(Setup.of(base.model_copy(update={"isolation": isolation})))
        except SandboxError as exc:
            missing[isolation] = str(exc)
            continue
        report = worker.report
        worker.close()
        active = [f"{name} namespace" for name in report["namespaces"]]
        if report["identity_dropped"]:
            active.append("identity of a user that owns nothing")
        if report["seccomp"]:
            active.append("seccomp")
        if report["landlock"]:
            active.append(f"landlock (ABI {report['landlock']})")
        if not report["processes"]:
            active.append("no new processes")
        active += ["no new privileges, no capabilities", "rlimits"]
        missing.update({name: reason for name, reason in report["missing"].items() if name not in missing})
        return IsolationReport(isolation, tuple(active), missing)
    return IsolationReport("none", (), missing)
