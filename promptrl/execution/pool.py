"""Jobs spread over sandboxed workers, with the one rule for a worker that is lost."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from promptrl.errors import SandboxError
from promptrl.execution.settings import SandboxSettings
from promptrl.execution.worker import Message, Setup, Worker, WorkerLostError


class Session(Protocol):
    """Collects the records of one job."""

    def accept(self, index: int, status: int, seconds: float, payload: bytes) -> bool:
        """Take one record; True asks the sandbox to stop this job."""

    def lost(self) -> None:
        """The candidate brought down its own sandbox, twice, where a harmless one did not."""


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate's run: the message for the sandbox, and who collects what comes back."""

    message: Callable[[], Message]
    session: Callable[[], Session]
    """Called again where the job has to be run anew."""
    wall_limit: float


class WorkerPool:
    """Up to `settings.workers` sandboxes, each started when it is first needed.

    Raises:
        SandboxError: from `run`, where the sandbox cannot be set up or breaks.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self._setup: Setup | None = None
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        _open_pools.add(self)

    def run(self, jobs: Sequence[Job], done: Callable[[int, Session], None]) -> None:
        """Run every job; `done` is called with each one's number and session, from several threads.

        Where one job breaks the sandbox the rest is given up and the first error raised.
        """
        with self._turn:
            queue = iter(range(len(jobs)))
            failures: list[BaseException] = []

            def work() -> None:
                while not failures:
                    with self._lock:
                        number = next(queue, None)
                    if number is None:
                        return
                    try:
                        done(number, self._run_one(jobs[number]))
                    except BaseException as exc:
                        failures.append(exc)

            number_of_threads = min(self.settings.workers, len(jobs))
            threads = [threading.Thread(target=work, daemon=True) for _ in range(number_of_threads)]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except BaseException as exc:  # Ctrl-C: let the threads end after the job they are at
                failures.append(exc)
                raise
            if failures:
                raise failures[0]

    def _run_one(self, job: Job) -> Session:
        for attempt in range(2):
            session = job.session()
            worker = self._take()
            try:
                healthy = worker.run(job.message(), job.wall_limit, session.accept)
            except WorkerLostError as exc:
                worker.close()
                if attempt and not self._works():
                    raise SandboxError(f"the sandbox does not work any more: {exc}") from exc
                continue
            except BaseException:
                worker.close()
                raise
            if healthy:
                self._give(worker)
            else:
                worker.close()
            return session
        session.lost()
        return session

    def _works(self) -> bool:
        """Whether a new worker answers an empty job: tells a broken sandbox from a candidate that breaks it."""
        worker = self._take()
        try:
            return worker.probe()
        except WorkerLostError:
            return False
        finally:
            worker.close()

    def _take(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._setup is None:
                self._setup = Setup.of(self.settings)
            setup = self._setup
        return Worker(setup)

    def _give(self, worker: Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def report(self) -> dict[str, object]:
        """What the first worker said about its confinement."""
        worker = self._take()
        self._give(worker)
        return dict(worker.report)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()
