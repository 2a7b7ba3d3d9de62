"""Taking rights away from the calling process for good: capabilities, resource limits, seccomp, Landlock.

Everything here is inherited by the processes forked later and cannot be undone by them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

# Numbers from the kernel's own tables; architectures that are not listed run without the filter, and say so.
_SYSCALLS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
        "reboot": 169, "swapon": 167, "swapoff": 168, "sethostname": 170, "setdomainname": 171, "acct": 163,
        "quotactl": 179, "open_by_handle_at": 304, "name_to_handle_at": 303, "settimeofday": 164,
        "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305, "syslog": 103, "io_uring_setup": 425,
        "socket": 41, "connect": 42, "bind": 49, "listen": 50, "personality": 135,
        "setpriority": 141, "sched_setaffinity": 203, "sched_setscheduler": 144, "memfd_secret": 447,
        "sched_setparam": 142, "sched_setattr": 314, "ioprio_set": 251, "migrate_pages": 256, "move_pages": 279,
        "process_madvise": 440, "process_mrelease": 448, "prlimit64": 302, "memfd_create": 319, "fcntl": 72,
        "ioctl": 16,
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94,
        "fchownat": 260, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188,
        "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "removexattrat": 466, "file_setattr": 469,
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
        "clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "kill": 62, "tgkill": 234, "tkill": 200,
        "pidfd_open": 434, "pidfd_send_signal": 424, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "prctl": 157,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438, "kcmp": 272,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97,
        "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
        "reboot": 142, "swapon": 224, "swapoff": 225, "sethostname": 161, "setdomainname": 162, "acct": 89,
        "quotactl": 60, "open_by_handle_at": 265, "name_to_handle_at": 264, "settimeofday": 170,
        "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "syslog": 116, "io_uring_setup": 425,
        "socket": 198, "connect": 203, "bind": 200, "listen": 201, "personality": 92,
        "setpriority": 140, "sched_setaffinity": 122, "sched_setscheduler": 119, "memfd_secret": 447,
        "sched_setparam": 118, "sched_setattr": 274, "ioprio_set": 30, "migrate_pages": 238, "move_pages": 239,
        "process_madvise": 440, "process_mrelease": 448, "prlimit64": 261, "memfd_create": 279, "fcntl": 25,
        "ioctl": 29,
        "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "utimensat": 88, "setxattr": 5,
        "lsetxattr": 6, "fsetxattr": 7, "setxattrat": 463, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "removexattrat": 466, "file_setattr": 469,
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
        "clone": 220, "clone3": 435, "kill": 129, "tgkill": 131, "tkill": 130,
        "pidfd_open": 434, "pidfd_send_signal": 424, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prctl": 167,
    },
}  # fmt: skip
_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SIGNALLING: Final = ("kill", "tgkill", "tkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_METADATA: Final = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
    "fremovexattr", "removexattrat", "file_setattr",
)  # fmt: skip
_SPECIAL: Final = frozenset(
    {
        "clone", "clone3", "fork", "vfork", "prctl", "pidfd_open", "prlimit64", "fcntl", "ioctl",
        *_SIGNALLING, *_METADATA,
    }
)  # fmt: skip
_OWNER_FCNTL: Final = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: have the kernel send signals to whom one likes
_OWNER_IOCTL: Final = (0x8901, 0x8902, 0x5410)  # FIOSETOWN, SIOCSPGRP, TIOCSPGRP: the same by another door
_FILE_FLAGS_IOCTL: Final = (0x40086602, 0x401C5820, 0x5412)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, TIOCSTI
_ENOSYS_CALLS: Final = frozenset({"io_uring_setup"})
_CLONE_NEW_ANY: Final = 0x7E020080
_CLONE_THREAD: Final = 0x00010000
_EPERM, _ENOSYS = 1, 38

_LD_W_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFF_NR, _OFF_ARCH, _OFF_ARG0, _OFF_ARG1 = 0, 4, 16, 24

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_READ: Final = 0b1101  # execute, read a file, read a folder
_LANDLOCK_FILE_BITS: Final = 0b111 | 1 << 14  # those that may be granted on a single file
_LANDLOCK_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def drop_capabilities() -> None:
    """Give up every capability, now and for whatever is executed later, and stay closed to debuggers."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one, or not ours to drop
    with contextlib.suppress(OSError):
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    empty = ctypes.create_string_buffer(24)
    if _libc.capset(header, empty) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def limit_resources(memory: int, file_size: int, stack: int, processes: int, cpu_seconds: int, open_files: int) -> None:
    """Set the hard limits of this process and its descendants; sizes in bytes."""
    limits = (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_STACK, stack),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    )
    for kind, wanted in limits:
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


class _Filter:
    """Assembles a seccomp program: each rule falls through to the next, and the last one allows."""

    def __init__(self, arch: int) -> None:
        self.code: list[tuple[int, int, int, int]] = [
            (_LD_W_ABS, 0, 0, _OFF_ARCH),
            (_JEQ, 1, 0, arch),
            (_RET, 0, 0, _ERRNO | _EPERM),
            (_LD_W_ABS, 0, 0, _OFF_NR),
        ]
        if arch == _AUDIT_ARCH["x86_64"]:  # the x32 calls would be a second name for every refused one
            self.code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _ERRNO | _EPERM)]

    def refuse(self, number: int, error: int = _EPERM) -> None:
        self.code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _ERRNO | error)]

    def refuse_by_argument(self, number: int, test: int, mask: int, *, when: bool, offset: int = _OFF_ARG0) -> None:
        """Refuse the call when (or unless) `test` holds between its first (or another) argument and `mask`."""
        hit = (0, 1) if when else (1, 0)
        self.code += [
            (_JEQ, 0, 4, number),
            (_LD_W_ABS, 0, 0, offset),
            (test, *hit, mask),
            (_RET, 0, 0, _ERRNO | _EPERM),
            (_LD_W_ABS, 0, 0, _OFF_NR),
        ]

    def install(self) -> None:
        program = [*self.code, (_RET, 0, 0, _ALLOW)]
        raw = b"".join(struct.pack("=HBBI", *step) for step in program)
        code = ctypes.create_string_buffer(raw, len(raw))
        head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if _libc.prctl(_PR_SET_SECCOMP, 2, head, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")


def _machine() -> str:
    return platform.machine() if struct.calcsize("P") == 8 else "32-bit"


def filter_syscalls() -> None:
    """Refuse what no solution needs: debugging, mounts, namespaces, sockets, kernel settings, files in memory.

    Raises:
        OSError: the kernel or the machine's architecture does not offer it.
    """
    numbers = _SYSCALLS.get(_machine())
    if numbers is None:
        raise OSError(_ENOSYS, f"no system call table for {_machine()}")
    program = _Filter(_AUDIT_ARCH[_machine()])
    for name, number in numbers.items():
        if name not in _SPECIAL:
            program.refuse(number, _ENOSYS if name in _ENOSYS_CALLS else _EPERM)
    # clone3 hides its flags behind a pointer; told that it is missing, the C library uses clone.
    program.refuse(numbers["clone3"], _ENOSYS)
    program.refuse_by_argument(numbers["clone"], _JSET, _CLONE_NEW_ANY, when=True)
    # A debugger could not attach anyway; this keeps a candidate from making itself dumpable or a subreaper.
    for option in (_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, 0x59616D61):
        program.refuse_by_argument(numbers["prctl"], _JEQ, option, when=True)
    # Limits are for oneself (pid 0): those of the process that all candidates come from are nobody's to change.
    program.refuse_by_argument(numbers["prlimit64"], _JEQ, 0, when=False)
    program.install()


def filter_new_processes() -> None:
    """Refuse new processes, but not threads; for use where the kernel does not count this user's processes.

    Raises:
        OSError: the kernel or the machine's architecture does not offer it.
    """
    numbers = _SYSCALLS[_machine()]
    program = _Filter(_AUDIT_ARCH[_machine()])
    program.refuse(numbers["clone3"], _ENOSYS)
    program.refuse_by_argument(numbers["clone"], _JSET, _CLONE_THREAD, when=False)
    for name in ("fork", "vfork"):
        if name in numbers:
            program.refuse(numbers[name])
    program.install()


def filter_reach(own_pid: int) -> None:
    """Let this process signal nobody but itself and change no file's rights, owner, times or attributes.

    For use where no namespaces hide other processes and files; Landlock does not cover what is said about a file.

    Raises:
        OSError: the kernel or the machine's architecture does not offer it.
    """
    numbers = _SYSCALLS.get(_machine())
    if numbers is None:
        raise OSError(_ENOSYS, f"no system call table for {_machine()}")
    program = _Filter(_AUDIT_ARCH[_machine()])
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        program.refuse_by_argument(numbers[name], _JEQ, own_pid, when=False)
    for name in ("tkill", "pidfd_open", "pidfd_send_signal"):
        program.refuse(numbers[name])
    for name, values in (("fcntl", _OWNER_FCNTL), ("ioctl", (*_OWNER_IOCTL, *_FILE_FLAGS_IOCTL))):
        for value in values:
            program.refuse_by_argument(numbers[name], _JEQ, value, when=True, offset=_OFF_ARG1)
    for name in _METADATA:
        if name in numbers:
            program.refuse(numbers[name])
    program.install()


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 where there is none."""
    return int(max(0, _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)))


def landlock(readable: list[str], writable: str) -> int:
    """Leave this process only these paths, no TCP, and no signals to processes outside its own descendants.

    Args:
        readable: files and folders that may be read and executed.
        writable: the one folder that may be changed.

    Returns:
        The ABI version in force.

    Raises:
        OSError: the kernel does not offer it.
    """
    version = landlock_version()
    if version < 1:
        raise OSError(_ENOSYS, "no Landlock")
    handled = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        if version >= since:
            handled |= 1 << bit
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", 0b11)
    if version >= 6:
        attributes += struct.pack("=Q", 0b11)
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        devices = [path for path in _LANDLOCK_DEVICES if os.path.exists(path)]  # noqa: PTH110 - stdlib without pathlib
        grants = [(path, _LANDLOCK_READ) for path in readable]
        grants += [(path, (_LANDLOCK_READ | 0b10) & handled) for path in devices]
        grants.append((writable, handled))
        for path, access in grants:
            _grant(rules, path, access)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if _libc.syscall(_LANDLOCK_RESTRICT, rules, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(rules)
    return version


def _grant(rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):  # noqa: PTH112
            access &= _LANDLOCK_FILE_BITS
        rule = struct.pack("=Qi", access, descriptor)
        if _libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)
