"""Following one candidate from its first record to its last: limits, restarts, and what is sent to the judge."""

from __future__ import annotations

import marshal
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from . import protocol, pytests, remote, runner

_GRACE: Final = 0.3
"""CPU seconds beyond a limit after which a process that ignored its own timer is killed."""
_WALL_FACTOR: Final = 8.0
"""A process may take this many times its CPU limit on the wall clock before it is killed, however busy the machine."""
_RECORDS: Final = frozenset(
    {
        protocol.VALUE,
        protocol.EXCEPTION,
        protocol.TIMEOUT,
        protocol.CRASHED,
        protocol.HELD,
        protocol.FALSE,
        protocol.RETURNED,
    }
)
_CHUNK: Final = 1 << 16


class Spawn(Protocol):
    """Forks a process; see `template.Template.spawn`."""

    def __call__(
        self, job: dict[str, Any], body: Callable[[int], None], stdin: int, stdout: int, trusted: bool = False
    ) -> tuple[int, int]: ...


def cpu_seconds(pid: int) -> float:
    """CPU time the process has used so far; 0.0 once it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def signal_name(status: int) -> str:
    """How a process ended, from its wait status, in words."""
    if os.WIFSIGNALED(status):
        try:
            return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
        except ValueError:
            return f"killed by signal {os.WTERMSIG(status)}"
    return f"the process ended with exit code {os.waitstatus_to_exitcode(status)}"


class Process:
    """One candidate process and the pipe that its records come through."""

    def __init__(self, pid: int, pipe: int, source: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.exit_fd = os.pidfd_open(pid)
        self.poll = select.poll()
        self.poll.register(pipe, select.POLLIN)
        self.poll.register(source, select.POLLIN)
        self.poll.register(self.exit_fd, select.POLLIN)
        self.reader = protocol.RecordReader(protocol.MAX_VALUE)
        self.partner: Process | None = None
        self.open = True
        self.out_of_time = False
        self.status: int | None = None
        self.mark = time.monotonic()
        self.cpu_mark = 0.0

    def cpu(self) -> float:
        """CPU seconds used so far by this process and its partner."""
        return cpu_seconds(self.pid) + (cpu_seconds(self.partner.pid) if self.partner is not None else 0.0)

    def restart_clock(self) -> None:
        self.mark, self.cpu_mark = time.monotonic(), self.cpu()

    def receive(self) -> bool:
        """Take in what the pipe holds; False when there was nothing."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        self.reader.feed(data)
        return True

    def ended(self) -> bool:
        """Whether the process is gone (its children may still hold the pipe)."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def last_status(self) -> int:
        """How the candidate ended; a tester ends only because its candidate did."""
        if self.partner is None:
            return self.status or 0
        select.select([self.partner.exit_fd], [], [], 1.0)
        return self.partner.status or 0 if self.partner.ended() else 0

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitpid(self.pid, 0)[1]
        if self.partner is not None:
            self.partner.kill()

    def close(self) -> None:
        if self.partner is not None:
            self.partner.close()
        os.close(self.pipe)
        os.close(self.exit_fd)


class LostError(Exception):
    """The process gives no further records; `status` and `detail` stand for the test that was running."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Supervisor:
    """Runs one job to its end.

    The rules: a test whose process had to be killed, or died, has its own outcome and the tests after it go on in a
    fresh process, at most `max_restarts` times. After `max_timeouts` tests out of time, or once the candidate's wall
    limit is reached, the tests that remain are out of time too without being run. The judge may say at any moment
    that it has seen enough.
    """

    def __init__(self, job: dict[str, Any], spawn: Spawn, clear: Callable[[], bool], source: int, sink: int) -> None:
        self.job = job
        self.spawn = spawn
        self.clear = clear
        self.source = source
        self.sink = sink
        self.limits: list[float] = job["limits"]
        self.total = len(self.limits)
        self.next = 0
        self.timeouts = 0
        self.restarts = 0
        self.stopped = False
        self.waiting = bytearray()
        self.outbox = job["outbox"]
        self.deadline = time.monotonic() + job["wall_limit"]

    def send(self, index: int, status: int, seconds: float, payload: bytes) -> None:
        self.waiting += protocol.pack_record(index, status, seconds, payload)
        if len(self.waiting) > _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Send the judge what waits for it: once per batch of records, not once per record."""
        if self.waiting:
            protocol.write_all(self.sink, bytes(self.waiting))
            self.waiting.clear()

    def run(self) -> bool:
        """Run everything; True where the judge stopped it."""
        step = self.run_program if self.job["style"] == "stdin" else self.run_functions
        while self.next < self.total and not self.stopped:
            if self.timeouts >= self.job["max_timeouts"] or time.monotonic() > self.deadline:
                self.fill(protocol.TIMEOUT, "not run: the time of this candidate was used up")
                break
            if self.restarts > self.job["max_restarts"]:
                self.fill(protocol.CRASHED, "not run: the process had ended too often")
                break
            step()
        self.flush()
        return self.stopped

    def fill(self, status: int, detail: str) -> None:
        while self.next < self.total:
            self.record(status, 0.0, detail.encode())

    def record(self, status: int, seconds: float, payload: bytes) -> None:
        self.send(self.next, status, seconds, payload)
        self.next += 1
        self.timeouts += status == protocol.TIMEOUT

    # -- functions: one process for all tests -------------------------------------------------------------------

    def run_functions(self) -> None:
        start = self.next
        self.outbox.reset()

        def body(out: int) -> None:
            if "pytest" in self.job:
                pytests.run(self.job, out, start)
            else:
                runner.Runner(self.job, out, self.job["preamble"], self.outbox).run(start)

        if any(kind == "assert" for kind, *_ in marshal.loads(self.job["tests"])):
            process = self.spawn_pair(start)
        else:
            process = Process(*self.spawn(self.job, body, -1, -1), self.source)
        try:
            imported = False
            import_limit = self.job["import_limit"] + self.job.get("collect_limit", 0.0)
            try:
                status, seconds, payload = self.await_record(process, protocol.IMPORT, import_limit)
                imported = status == protocol.READY
                if start == 0 or not imported:
                    self.send(protocol.IMPORT, status, seconds, payload)
                if not imported:
                    self.next = self.total
                    return
                while self.next < self.total and not self.stopped and self.timeouts < self.job["max_timeouts"]:
                    self.pass_on_values(process)
                    if self.next == self.total:
                        break
                    status, seconds, payload = self.await_record(process, self.next, self.limits[self.next])
                    self.record(status, seconds, payload)
            except LostError as lost:
                if imported:
                    self.restarts += 1
                    self.record(lost.status, 0.0, lost.detail.encode())
                elif not self.stopped:
                    self.send(protocol.IMPORT, lost.status, 0.0, lost.detail.encode())
                    self.next = self.total
        finally:
            process.kill()
            process.close()
            if self.next < self.total:
                self.clear()  # before the rest goes on in a new process; at the end the template does it

    def pass_on_values(self, process: Process) -> None:
        """Send on what has come of the usual kind, without taking it apart: the judge reads it anyway."""
        number, records = process.reader.values(self.next, self.total)
        self.next += number
        self.waiting += records
        if len(self.waiting) > _CHUNK:
            self.flush()

    def spawn_pair(self, start: int) -> Process:
        """A candidate that answers calls, and a tester that makes them; the records are the tester's."""
        ask, reply = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)

        def answer(out: int) -> None:
            os.close(out)
            os.close(ask[1])
            os.close(reply[0])
            remote.serve_calls(runner.Runner(self.job, reply[1], self.job["preamble"], None), ask[0])

        def test(out: int) -> None:
            os.close(ask[0])
            os.close(reply[1])
            remote.Tester(self.job, out, ask[1], reply[0], self.job["preamble"]).run(start)

        candidate = Process(*self.spawn(self.job, answer, -1, -1), self.source)
        tester = Process(*self.spawn(self.job, test, -1, -1, trusted=True), self.source)
        for descriptor in (*ask, *reply):
            os.close(descriptor)
        tester.partner = candidate
        return tester

    def await_record(self, process: Process, index: int, limit: float) -> tuple[int, float, bytes]:
        """The record of the test that runs now.

        Raises:
            LostError: the process died, wrote nonsense, or was killed because its time was up.
        """
        fresh = True
        while True:
            found = self.take(process, index)
            if found is not None:
                if found[0] != protocol.RETURNED:
                    return found
                limit = runner.ENCODE_SECONDS
                process.restart_clock()
                continue
            if (process.out_of_time or not fresh) and process.ended():
                if process.receive() or self.recover(process):
                    continue
                if process.out_of_time:
                    raise LostError(protocol.TIMEOUT, "killed: it ignored its time limit")
                raise LostError(protocol.CRASHED, signal_name(process.last_status()))
            if fresh:
                # Only now is there something to wait for: most records arrive many at a time.
                fresh = False
                self.flush()
                process.restart_clock()
            wait = self.remaining(process, limit)
            if wait <= 0:
                process.out_of_time = True
                process.kill()
                continue  # what it had not written yet comes first: the test that hung may be a later one
            ready = {descriptor for descriptor, _ in process.poll.poll(max(1, int(wait * 1000)))}
            if self.source in ready:
                # The judge sends nothing while a job runs but the word to stop it; or it is gone.
                protocol.read_frame(self.source)
                self.stopped = True
                raise LostError(protocol.TIMEOUT, "stopped by the judge")
            if process.pipe in ready and not process.receive() and not process.open:
                process.poll.unregister(process.pipe)

    def recover(self, process: Process) -> bool:
        """Take over the records that an ended process had not written; False where there are none."""
        while process.receive():
            pass
        left = self.outbox.left()
        process.reader.feed(left)
        return bool(left)

    def take(self, process: Process, index: int) -> tuple[int, float, bytes] | None:
        try:
            record = process.reader.next()
        except ValueError:
            record = (index - 1, 0, 0.0, b"")
        if record is None:
            return None
        allowed = _RECORDS | {protocol.READY} if index == protocol.IMPORT else _RECORDS
        if record[0] != index or record[1] not in allowed:
            process.kill()
            raise LostError(protocol.CRASHED, "the candidate wrote into the result channel")
        return record[1:]

    def remaining(self, process: Process, limit: float) -> float:
        """Seconds until it is worth looking again; 0 or less when the time is up."""
        now = time.monotonic()
        used = process.cpu() - process.cpu_mark
        wall_left = min(process.mark + _WALL_FACTOR * limit + _GRACE, self.deadline + limit) - now
        cpu_left = limit + _GRACE - used
        if cpu_left <= 0.01:
            return 0.0
        return float(min(wall_left, cpu_left))

    # -- programs: one process for each test ---------------------------------------------------------------------

    def run_program(self) -> None:
        index = self.next
        text = marshal.loads(self.job["tests"])[index][1]
        self.outbox.reset()
        stdin, stdout = self.job["stdin"], self.job["stdout"]
        for descriptor in (stdin, stdout):  # files that stay from program to program, with nothing of the one before
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
        protocol.write_all(stdin, text)
        os.lseek(stdin, 0, os.SEEK_SET)

        def body(out: int) -> None:
            if "/dev/stdin" in self.job["code"]:
                runner.write_input(text)
            runner.run_program(self.job, index, out, self.job["preamble"])

        process = Process(*self.spawn(self.job, body, stdin, stdout), self.source)
        try:
            status, seconds, payload = self.await_record(process, index, self.limits[index])
            if status == protocol.VALUE:
                payload = b""
        except LostError as lost:
            status, seconds, payload = lost.status, 0.0, lost.detail.encode()
            left = process.status
            if lost.status == protocol.CRASHED and left is not None and os.WIFEXITED(left):
                # `os._exit` after printing is an ordinary way for a program to end: its output decides.
                code = os.WEXITSTATUS(left)
                status = protocol.VALUE if code == 0 else protocol.EXCEPTION
        finally:
            process.kill()
            process.close()
            self.clear()
        if self.stopped:
            return
        if status == protocol.VALUE:
            size = os.fstat(stdout).st_size
            if size > self.job["output_bytes"]:
                status, payload = protocol.EXCEPTION, b"printed more than the output limit"
            else:
                payload = os.pread(stdout, size, 0)
        self.record(status, seconds, payload)
