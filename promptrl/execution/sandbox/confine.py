"""Moving this process into namespaces of its own: nothing of the host to see, signal, reach or write."""

# Plain system calls and their errno, as in the code around them:
# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH112, PTH115, PTH116, PTH119, PTH120, PTH211

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_MNT_DETACH: Final = 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR: Final = 442
_AT_RECURSIVE: Final = 0x8000

WORK: Final = "/tmp/work"
"""The folder a candidate starts in, the only place where it can write (with its parent, /tmp)."""
PACKAGES: Final = "/packages"
"""Where a candidate finds the packages that it may import."""
INPUT: Final = "/tmp/stdin"
"""Where `/dev/stdin` leads; there for programs that mention it."""
_NEW_ROOT: Final = "/proc"  # exists everywhere, and the host's own is to be covered anyway
SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/libx32", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_NOBODY: Final = 65534


class ConfineError(OSError):
    """A namespace that this machine does not grant; the text says which step failed."""


def _fail(step: str) -> ConfineError:
    number = ctypes.get_errno()
    return ConfineError(number, f"{step}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)) != 0:
        raise _fail(f"mount {target}")


def enter_namespaces() -> list[str]:
    """Leave the host's user, mount, pid, network, IPC and host-name namespaces.

    Root with its full rights needs no user namespace; everybody else gets one in which they are mapped to themselves.

    Returns:
        The names of the namespaces entered.

    Raises:
        ConfineError: the kernel or the container refuses.
    """
    names = ["mount", "pid", "net", "ipc", "uts"]
    flags = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0 and _libc.unshare(flags) == 0:
        return names
    if _libc.unshare(flags | _NEWUSER) != 0:
        raise _fail("unshare")
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as exc:
        raise ConfineError(exc.errno, f"user namespace map: {exc.strerror}") from None
    return ["user", *names]


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def build_root(visible: list[str], hidden: list[str], packages: list[str], size: int) -> None:
    """Replace the file system by a read-only one of `visible` and system paths, and a temporary folder.

    Args:
        visible: absolute files and folders that keep their place.
        hidden: folders within those to be shown empty.
        packages: files and folders to be found under `PACKAGES`; their own place may lie below a folder that is
            covered here, `/tmp` among them.
        size: how much the temporary folder may hold, in bytes.

    Raises:
        ConfineError: a mount is refused.
    """
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", _NEW_ROOT, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4m,mode=755")
    for path in [*SYSTEM, *visible]:
        _expose(path)
    covers = [path for path in hidden if os.path.isdir(_NEW_ROOT + path)]
    for path in covers:
        _mount("tmpfs", _NEW_ROOT + path, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path in packages:
        _expose(path, f"{PACKAGES}/{os.path.basename(path)}")
    for path in covers:
        _mount(None, _NEW_ROOT + path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.mkdir(_NEW_ROOT + "/dev")
    for name in _DEVICES:
        target = f"{_NEW_ROOT}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        _mount(f"/dev/{name}", target, None, _MS_BIND)
    # Without /proc nothing else can lead to a program's input by name.
    os.symlink(INPUT, f"{_NEW_ROOT}/dev/stdin")
    for name in ("/tmp", "/old", "/proc"):
        os.makedirs(_NEW_ROOT + name, exist_ok=True)
    _mount("tmpfs", _NEW_ROOT + "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},nr_inodes=20000,mode=1777")
    os.mkdir(_NEW_ROOT + WORK)
    os.chmod(_NEW_ROOT + WORK, 0o777)
    os.chdir(_NEW_ROOT)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None or _libc.syscall(number, b".", b"old") != 0:
        raise _fail("pivot_root")
    os.chdir("/")
    if _libc.umount2(b"/old", _MNT_DETACH) != 0:
        raise _fail("umount")
    os.rmdir("/old")
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _expose(path: str, place: str | None = None) -> None:
    target = _NEW_ROOT + (place or path)
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if os.path.lexists(target):
        return  # already there, inside a folder exposed before
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(path, target, None, _MS_BIND | _MS_REC)
    attributes = struct.pack("=QQQQ", 1 | 2 | 4, 0, 0, 0)  # read-only, no setuid, no devices
    if _libc.syscall(_MOUNT_SETATTR, -100, os.fsencode(target), _AT_RECURSIVE, attributes, ctypes.c_size_t(32)) == 0:
        return
    kept = os.statvfs(path).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | kept)


def become_nobody(needed: str) -> bool:
    """Root gives up its identity for one that owns nothing on this host.

    Args:
        needed: a file that must stay readable; where it would not be, the identity stays and False comes back.
    """
    if os.geteuid() != 0:
        return False
    mode = os.stat(needed).st_mode
    if not mode & stat.S_IROTH:
        return False
    # One id per worker, so that the limit on processes, which the kernel counts per user, is per worker too.
    for identity in (0x40000000 + os.getppid() % 0x10000000 + os.getpid(), _NOBODY):
        try:
            os.setgroups([])
            os.setresgid(identity, identity, identity)
            os.setresuid(identity, identity, identity)
        except OSError:
            continue
        return True
    return False
