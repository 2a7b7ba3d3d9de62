"""What this machine has of what promptrl needs, and what to do about what is missing.

Each `Finding` is one line: a value that was looked up, whether it will do, and the remedy if it will not. Only what the
quickstart cannot do without counts as missing; the rest is told and left to the reader.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from promptrl.assets import ASSETS, Asset, cache_dir
from promptrl.assets.store import Place, where
from promptrl.assets.verify import is_marked, problem_with
from promptrl.errors import PromptRLError

PACKAGES = ("torch", "transformers", "gymnasium", "stable-baselines3", "sentence-transformers", "huggingface-hub")
QUICKSTART_ASSETS = ("qwen2.5-coder-0.5b", "minilm", "humaneval")
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""Flags of /proc/cpuinfo that decide how fast each number format is."""

QUICKSTART_DISK = 3_000_000_000
"""Bytes that the quickstart takes with room to spare: weights packed and unpacked, caches, records."""

QUICKSTART_MEMORY = 4_000_000_000
"""Bytes that the 0.5B model in float32 beside the encoder and the judge's processes want."""


@dataclass(frozen=True)
class Finding:
    """One line of the report; `missing` is something that the quickstart needs, `note` something worth knowing."""

    section: str
    name: str
    value: str
    state: Literal["ok", "note", "missing"] = "ok"
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at this machine; nothing is fetched, and nothing but the cache folder is written."""
    findings = [*_software(), *_hardware(), *_sandbox()]
    for look in (_storage, _assets):
        try:
            findings += look()
        except (PromptRLError, OSError) as error:
            findings.append(Finding("files", "folders", str(error), "missing", "mend what the line says"))
    return findings


def doctor(
    json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of the page for people")] = False,
) -> None:
    """Show what this machine has: versions, hardware, isolation level, models and data."""
    import json as json_module

    findings = examine()
    ok = all(finding.state != "missing" for finding in findings)
    if json:
        typer.echo(json_module.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings, ok)
    if not ok:
        raise typer.Exit(1)


def _print(findings: list[Finding], ok: bool) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    width = max(len(finding.name) for finding in findings)
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.print(section, style="bold")
        sign = {"ok": " ", "note": "!", "missing": "X"}[finding.state]
        console.print(f"  {sign} {finding.name:{width}}  {finding.value}")
        if finding.remedy:
            console.print(f"    {'':{width}}  -> {finding.remedy}")
    console.print("ready for the quickstart" if ok else "not ready for the quickstart: see the lines marked X")


def _software() -> Iterator[Finding]:
    yield Finding("software", "Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("software", "system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    for package in PACKAGES:
        try:
            yield Finding("software", package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("software", package, "not installed", "missing", f"install it: pip install {package}")


def _hardware() -> Iterator[Finding]:
    cores = available_cores()
    yield Finding("hardware", "cores", f"{cores:g} usable of {os.cpu_count()}")
    yield Finding("hardware", "processor", *_processor())
    memory = available_memory()
    few = memory < QUICKSTART_MEMORY
    yield Finding(
        "hardware",
        "memory",
        f"{memory / 1e9:.1f} GB",
        "note" if few else "ok",
        f"the quickstart wants {QUICKSTART_MEMORY / 1e9:.0f} GB: close other programs" if few else "",
    )
    try:
        import torch

        cuda = bool(torch.cuda.is_available())
        name = torch.cuda.get_device_name(0) if cuda else "none (the processor is used)"
    except Exception as error:  # a broken installation raises anything from OSError to RuntimeError
        yield Finding("hardware", "GPU", f"torch cannot be loaded: {error}", "missing", "install torch again")
        return
    yield Finding("hardware", "GPU", name)
    yield _precision()


def _processor() -> tuple[str, Literal["ok", "note"], str]:
    flags = cpu_flags()
    found = [feature for feature in CPU_FEATURES if feature in flags]
    listed = ", ".join(found) or "none of " + ", ".join(CPU_FEATURES)
    if {"avx512_bf16", "amx_bf16"} & set(found):
        return f"{listed} (multiplies bfloat16 itself)", "ok", ""
    return (
        f"{listed} (does not multiply bfloat16 itself)",
        "note",
        "expect fewer answers per second than on one that does",
    )


def _precision() -> Finding:
    """What `dtype: auto` means here, asked of the code that decides it."""
    try:
        from promptrl.models.settings import ModelSettings
        from promptrl.models.weights import pick_device, pick_dtype

        device = pick_device(ModelSettings())
        dtype = str(pick_dtype(ModelSettings(), device)).removeprefix("torch.")
    except Exception as error:  # whatever broke, the other findings are still wanted
        return Finding(
            "hardware",
            "precision",
            f"cannot be told ({type(error).__name__}: {error})",
            "missing",
            "reinstall promptrl",
        )
    return Finding("hardware", "precision", f"auto means {dtype} on {device}")


def _sandbox() -> Iterator[Finding]:
    """What the judge can hold candidates with here; without an answer untrusted code must not run."""
    try:
        from promptrl.execution import isolation_level

        report = isolation_level()
    except Exception as error:  # whatever broke, the other findings are still wanted
        broken = f"cannot be told ({type(error).__name__}: {error})"
        yield Finding("sandbox", "isolation", broken, "missing", "reinstall promptrl, on Linux")
        return
    if report.level == "namespaces":
        yield Finding("sandbox", "isolation", "namespaces")
    elif report.level == "rlimits":
        remedy = "allow unprivileged user namespaces, or accept limits alone with sandbox.isolation: rlimits"
        yield Finding("sandbox", "isolation", "rlimits only: candidates share the machine's view", "missing", remedy)
    else:
        yield Finding("sandbox", "isolation", "none", "missing", "mend what the lines below say; Linux is needed")
    if report.active:
        yield Finding("sandbox", "in force", ", ".join(report.active))
    for layer, reason in report.missing.items():
        yield Finding("sandbox", layer, f"not in force: {reason}", "note")


def _storage() -> Iterator[Finding]:
    cache = cache_dir()
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file() and not file.is_symlink())
    yield Finding("files", "cache", f"{cache}, {size / 1e6:,.0f} MB")
    free = shutil.disk_usage(cache).free
    few = free < QUICKSTART_DISK - min(size, QUICKSTART_DISK)
    yield Finding(
        "files",
        "free disk",
        f"{free / 1e9:.1f} GB",
        "missing" if few else "ok",
        "free some, or set PROMPTRL_CACHE_DIR to a folder on another disk" if few else "",
    )
    for variable in ("PROMPTRL_DATA_DIR", "PROMPTRL_MODEL_DIR", "HF_HUB_OFFLINE"):
        yield Finding("files", variable, os.environ.get(variable) or "not set")


def _assets() -> Iterator[Finding]:
    for asset in ASSETS:
        section = "models" if asset.kind == "model" else "data"
        needed = asset.name in QUICKSTART_ASSETS
        place = where(asset)
        fetch = f"promptrl assets get {asset.name}"
        if place is None:
            yield Finding(section, asset.name, "not here", "missing" if needed else "ok", fetch if needed else "")
        else:
            yield _present(section, asset, place, needed, fetch)


def _present(section: str, asset: Asset, place: Place, needed: bool, fetch: str) -> Finding:
    checked = is_marked(asset, place.path)
    problem = problem_with(asset, place.path)  # instant where a mark says that the bytes were right
    if problem is None:
        return Finding(section, asset.name, f"{place.path} ({place.label}{', verified' if checked else ''})")
    remedy = f"replace or remove {place.path}" if place.owner == "user" else fetch
    return Finding(section, asset.name, problem, "missing" if needed else "note", remedy)


def cpu_flags() -> frozenset[str]:
    """The processor's feature flags as Linux names them; empty where they cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), ":")
    return frozenset(line.partition(":")[2].split())


def available_cores() -> float:
    """Cores this process may use: its affinity, or less where a container's quota says so."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _cgroup_value("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def available_memory() -> int:
    """Bytes of memory of this machine, or of the container if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_value("memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _cgroup_value(name: str) -> str:
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
