"""Several runs made at once, each in a process of its own, with one model that answers all of them in one batch.

A step of a run waits for its longest answer, and a batch of few rows costs almost as much as one of many. So one model
writes what any of the runs asks: a causal model in a batch that goes on while some runs think, any other once all runs
have asked. What several ask is written once. Each run is the same as it would be alone, down to its records, but for
times, for what came from the cache, and for rounding, which depends on the batch.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final, Protocol, TextIO, cast

import torch
from rich.console import Console

from promptrl.config import Config
from promptrl.errors import ModelError, PromptRLError, RunError
from promptrl.experiment import run_baselines, run_experiment
from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.models.cache import CachedModel
from promptrl.models.calls import Call, CallsModel
from promptrl.stopping import stop_once
from promptrl.workbench import Workbench

_END_SECONDS: Final = 10.0
_WIDTH: Final = 150


class Planned(Protocol):
    """What is asked of a planned run; without a reward nothing is trained."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Config: ...

    @property
    def reward(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """Requests to one of the models, from a process that waits for its answers."""

    model: str
    requests: tuple[GenerationRequest, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a run, or a call of a model, came to nothing, in one sentence."""

    sentence: str


class NobodyAnswersError(Exception):
    """Nobody is there to answer any more."""


class RemoteModel:
    """A model that lies in another process, asked through a connection.

    Args:
        connection: to who answers, see `answer_together`.
        name: which of its models is asked.
        fingerprint: that model's.
    """

    def __init__(self, connection: Connection, name: str, fingerprint: str) -> None:
        self._connection = connection
        self._name = name
        self.fingerprint = fingerprint

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer all requests, in order.

        Raises:
            ModelError: what the model raised.
            NobodyAnswersError: when nobody is there to answer any more.
        """
        if not requests:
            return []
        try:
            self._connection.send(Ask(self._name, tuple(requests)))
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise NobodyAnswersError from None
        if isinstance(answer, Failed):
            raise ModelError(answer.sentence)
        return cast(list[Generation], answer)


def answer_together(asked: Mapping[Connection, Ask], models: Mapping[str, CodeModel]) -> list[Connection]:
    """Answer with one call what several processes ask the first of the models that is asked, and send the answers.

    Equal requests of one call cost nothing more where the model is cached.

    Returns:
        Who has been answered; the others wait on.
    """
    name = next(name for name in models if any(ask.model == name for ask in asked.values()))
    asking = {connection: ask.requests for connection, ask in asked.items() if ask.model == name}
    try:
        answers = iter(models[name].generate([request for requests in asking.values() for request in requests]))
    except PromptRLError as error:
        for connection in asking:
            _send(connection, Failed(str(error)))
    else:
        for connection, requests in asking.items():
            _send(connection, [next(answers) for _ in requests])
    return list(asking)


def run_side_by_side(
    runs: Iterable[tuple[str, Planned, bool]],
    at_once: int,
    workbench: Workbench,
    *,
    make_workbench: Callable[[Config], Workbench] = Workbench,
    console: Console,
) -> None:
    """Make runs, some at once, each as `run_experiment` or `run_baselines` makes it alone.

    Args:
        runs: a name for the user, the run, and whether it is gone on with; all of the same models.
        at_once: how many at most.
        workbench: whose models answer.
        make_workbench: makes the parts of a run in its own process but for the models; found by its name there.
        console: where their lines go, each with the run's name.

    Raises:
        RunError: when a run fails, with its reason; the others are stopped, and can be gone on with.
    """
    # Rewrites come first: who asked for them asks for code next, and then all wait for the long answers together.
    models = {"rewriter": workbench.rewriter, "coder": workbench.coder}
    prints = {name: model.fingerprint for name, model in models.items()}
    crowd = _Crowd(runs, at_once, make_workbench, prints, console)
    try:
        if models["rewriter"] is models["coder"] and (model := _without_rounds(models["coder"])) is not None:
            model.answer_calls(crowd.calls)
        else:
            _answer_in_rounds(crowd, models)
    finally:
        crowd.stop()


def _without_rounds(model: CodeModel) -> CallsModel | None:
    usable = model.takes_calls if isinstance(model, CachedModel) else isinstance(model, CallsModel)
    return cast(CallsModel, model) if usable else None


def _answer_in_rounds(crowd: _Crowd, models: Mapping[str, CodeModel]) -> None:
    asked: dict[Connection, Ask] = {}
    while crowd.begin():
        for connection, ask in crowd.heard([one for one in crowd.running if one not in asked]):
            model = models[ask.model]
            # What is kept is not waited for: a training that goes on asks often for one answer.
            if isinstance(model, CachedModel) and (kept := model.kept(ask.requests)) is not None:
                _send(connection, kept)
            else:
                asked[connection] = ask
        if asked and len(asked) == len(crowd.running):
            # In the order in which they began, so that a batch does not depend on who was faster.
            for connection in answer_together({one: asked[one] for one in crowd.running}, models):
                del asked[connection]


class _Crowd:
    """The processes that are running, and the runs that have to wait for one of these to end."""

    def __init__(
        self,
        runs: Iterable[tuple[str, Planned, bool]],
        at_once: int,
        make_workbench: Callable[[Config], Workbench],
        prints: Mapping[str, str],
        console: Console,
    ) -> None:
        self.running: dict[Connection, _Running] = {}
        self._waiting = list(runs)
        self._at_once = at_once
        self._make_workbench = make_workbench
        self._prints = prints
        self._console = console

    def begin(self) -> bool:
        """Fill free places; False when everything has been made."""
        context = multiprocessing.get_context("spawn")  # a fork would share the locks of torch's threads
        while self._waiting and len(self.running) < self._at_once:
            name, run, resume = self._waiting.pop(0)
            ours, theirs = context.Pipe()
            make = run_baselines if run.reward is None else run_experiment
            arguments = (make, self._make_workbench, run.config, run.path, resume, self._prints, theirs)
            process = context.Process(target=_run, args=arguments, name=name)
            process.start()
            theirs.close()
            self.running[ours] = _Running(name, process)
        return bool(self.running)

    def heard(self, among: Sequence[Connection], timeout: float | None = None) -> list[tuple[Connection, Ask]]:
        """What is asked, after waiting until some process says anything at all; what they say is printed.

        Raises:
            RunError: when one of them has failed.
        """
        asks = []
        for connection in cast(list[Connection], wait(among, timeout)):
            try:
                message = connection.recv()
            except (EOFError, OSError):
                self.running.pop(connection).end()
                continue
            name = self.running[connection].name
            match message:
                case Ask():
                    asks.append((connection, message))
                case Say(text):
                    self._console.print(f"{name}: {text}", highlight=False, markup=False, soft_wrap=True)
                case Failed(sentence):
                    raise RunError(f"{name}: {sentence}")
        return asks

    def calls(self, wait_for_some: bool) -> list[Call] | None:
        """What is asked now, or next; None when everything has been made."""
        while self.begin():
            asks = self.heard(list(self.running), None if wait_for_some else 0)
            if asks or not wait_for_some:
                return [call for connection, ask in asks for call in _Asked(connection, ask.requests).calls()]
        return None

    def stop(self) -> None:
        """End what is still running; what it made can be gone on with."""
        for one in self.running.values():
            one.process.terminate()
        for one in self.running.values():
            one.process.join(_END_SECONDS)
            one.process.kill()


class _Asked:
    """What a process waits for: all answers, or the first reason why one will not come."""

    def __init__(self, connection: Connection, requests: Sequence[GenerationRequest]) -> None:
        self._connection = connection
        self._requests = requests
        self._answers: dict[int, Generation] = {}
        self._failed = False

    def calls(self) -> list[Call]:
        return [_AskedCall(request, number, self) for number, request in enumerate(self._requests)]

    def answered(self, number: int, answer: Generation) -> None:
        self._answers[number] = answer
        if len(self._answers) == len(self._requests):
            _send(self._connection, [self._answers[number] for number in range(len(self._requests))])

    def failed(self, error: PromptRLError) -> None:
        if not self._failed:
            _send(self._connection, Failed(str(error)))
        self._failed = True


@dataclass(frozen=True, slots=True)
class _AskedCall:
    """One of the requests of a process."""

    request: GenerationRequest
    number: int
    asked: _Asked

    def answered(self, answer: Generation) -> None:
        self.asked.answered(self.number, answer)

    def failed(self, error: PromptRLError) -> None:
        self.asked.failed(error)


@dataclass
class _Running:
    name: str
    process: SpawnProcess

    def end(self) -> None:
        """Take note that the process has closed its connection.

        Raises:
            RunError: when it has failed without a word.
        """
        self.process.join()
        if self.process.exitcode:
            raise RunError(f"{self.name}: its process ended with exit code {self.process.exitcode}")


def _run(
    make: Callable[..., object],
    make_workbench: Callable[[Config], Workbench],
    config: Config,
    path: Path,
    resume: bool,
    prints: Mapping[str, str],
    connection: Connection,
) -> None:
    """One run in its own process."""
    # Ctrl-C reaches all processes of a terminal; this one is stopped by the one that answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop_once)
    torch.set_num_threads(1)  # the model has the cores; little is computed here
    coder, rewriter = (RemoteModel(connection, name, prints[name]) for name in ("coder", "rewriter"))
    console = Console(file=cast(TextIO, _Said(connection)), width=_WIDTH, force_terminal=False, color_system=None)
    try:
        with closing(make_workbench(config)) as workbench:
            workbench.use_models(coder, rewriter)
            make(config, path, resume=resume, console=console, workbench=workbench)
    except PromptRLError as error:
        _send(connection, Failed(str(error)))
    except (KeyboardInterrupt, NobodyAnswersError):
        # Mostly whoever answers has stopped, and says so itself; where it has not, this run must not count as made.
        raise SystemExit(1) from None
    except Exception as error:
        _send(connection, Failed(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        connection.close()


@dataclass
class _Said:
    """A file whose lines are sent."""

    connection: Connection
    begun: str = field(default="")

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            if line.strip():
                _send(self.connection, Say(line.rstrip()))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back but a line that is not finished."""


def _send(connection: Connection, message: object) -> None:
    """Send, if there is still somebody."""
    with suppress(OSError):
        connection.send(message)
