"""Agents trained at once: what each leaves, what the model is asked, and what is said when one fails."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from promptrl.config import Config
from promptrl.errors import ModelError, RunError
from promptrl.execution import Judge
from promptrl.models.base import CodeModel, Generation, GenerationRequest
from promptrl.models.cache import CachedModel, GenerationCache
from promptrl.progress import progress_bar
from promptrl.side_by_side import Failed, NobodyAnswersError, RemoteModel, Say, _run, answer_together
from promptrl.study import Study
from promptrl.workbench import Workbench
from tests.scripted import CalledModel, ScriptedModel, make_judge
from tests.workbench import only_rewritten, scripted_workbench, small_config

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class OwnWorkbench(Workbench):
    """Made in the process of a training: everything is there but the models."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._judge = make_judge()
        self.__dict__.update(scripted_workbench(self._judge)(config).__dict__, _judge=self._judge)

    def use_models(self, coder: object, rewriter: object) -> None:
        super().use_models(coder, rewriter)  # type: ignore[arg-type]
        if self.config.seed == 13:
            raise ModelError("thirteen is no seed")
        if self.config.seed == 14:
            raise SystemExit(3)

    def close(self) -> None:
        self._judge.close()


def make_own(config: Config) -> Workbench:
    return OwnWorkbench(config)


def records(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (path / "train.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


def test_agents_side_by_side_are_those_that_are_trained_alone(judge: Judge, tmp_path: Path) -> None:
    config = small_config(evaluation={"methods": ["ppo"]}, study={"rewards": ["shaped", "binary"]})
    coder, console = ScriptedModel(only_rewritten), Console(file=io.StringIO(), width=200)

    def shared(config: Config) -> Workbench:
        workbench = scripted_workbench(judge)(config)
        workbench.__dict__["coder"] = coder
        return workbench

    alone = Study(config, tmp_path / "alone", make_workbench=shared).run(console=console)
    batches, coder.batches = coder.batches, []
    study = {"rewards": ["shaped", "binary"], "at_once": 2}
    both = Study(
        config.model_copy(update={"study": config.study.model_validate(study)}),
        tmp_path / "both",
        make_workbench=_Shared(make_own, shared),
    ).run(console=console)
    assert [path.name for path in both] == ["shaped-seed0", "binary-seed0"]
    for one, other in zip(alone, both, strict=True):
        assert records(one) == records(other)
        tables = [(path / "table.md").read_text().replace("0.1", "") for path in (one, other)]
        assert tables[0] == tables[1]
        assert json.loads((other / "training.json").read_text())["steps"] == 32
    # As many requests in fewer calls: two trainings of four environments are asked for together.
    assert sum(map(len, coder.batches)) == sum(map(len, batches))
    assert max(map(len, coder.batches)) == 8
    assert len(coder.batches) < len(batches)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "held_out/binary-seed0: trained 32 steps" in said
    before = len(coder.batches)
    again = Study(config, tmp_path / "both", make_workbench=shared).run(console=console)
    assert again == both
    assert len(coder.batches) == before


class _Shared:
    """What makes a workbench: `here` in this process, `there` in another one, as only that can be sent."""

    def __init__(self, there: object, here: object = None) -> None:
        self._there, self._here = there, here

    def __call__(self, config: Config) -> Workbench:
        return (self._here or self._there)(config)  # type: ignore[operator, no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        return (_Shared, (self._there,))


def test_more_runs_than_places_with_and_without_an_agent(judge: Judge, tmp_path: Path) -> None:
    config = small_config(evaluation={"methods": ["direct", "repeat-direct", "ppo"]}, study={"at_once": 2})
    coder, console = CalledModel(only_rewritten), Console(file=io.StringIO(), width=200)

    def shared(config: Config) -> Workbench:
        workbench = scripted_workbench(judge)(config)
        workbench.use_models(coder, coder)
        return workbench

    alone = Study(
        config.model_copy(update={"study": config.study.model_validate({"at_once": 1})}),
        tmp_path / "alone",
        seeds=[0, 1],
        make_workbench=shared,
    ).run(console=console)
    together = Study(config, tmp_path / "both", seeds=[0, 1], make_workbench=_Shared(make_own, shared)).run(
        console=console
    )
    names = ["baselines-seed0", "baselines-seed1", "shaped-seed0", "shaped-seed1"]
    assert [path.name for path in together] == names
    for one, other in zip(alone, together, strict=True):
        results = [json.loads((path / "summary.json").read_text())["evaluation"] for path in (one, other)]
        scores = [[(r["method"], r["n"], r["strict"], r["soft"]) for r in result] for result in results]
        assert scores[0] == scores[1]
        if (one / "train.jsonl").exists():
            assert records(one) == records(other)


@pytest.mark.parametrize(
    ("seed", "sentence"),
    [(13, "held_out/shaped-seed13: thirteen is no seed"), (14, "held_out/shaped-seed14: its process ended .* code 3")],
)
def test_one_that_fails_stops_all_and_says_why(judge: Judge, tmp_path: Path, seed: int, sentence: str) -> None:
    config = small_config(evaluation={"methods": ["ppo"]}, study={"seeds": [seed, 1], "at_once": 2})
    study = Study(config, tmp_path / "study", make_workbench=_Shared(make_own, scripted_workbench(judge)))
    with pytest.raises(RunError, match=sentence):
        study.run(console=Console(file=io.StringIO()))


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signal handlers, which a run's process sets for itself."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Bare:
    def __init__(self, config: object) -> None:
        self.config = config

    def use_models(self, coder: object, rewriter: object) -> None:
        self.coder = coder

    def close(self) -> None:
        pass


def run_in_this_process(make: Callable[..., object]) -> list[object]:
    """What a run's process says."""
    ours, theirs = Pipe()
    prints = {"coder": "print", "rewriter": "print"}
    _run(make, Bare, small_config(), Path("unused"), False, prints, theirs)  # type: ignore[arg-type]
    said = []
    with suppress(EOFError):
        while True:
            said.append(ours.recv())
    return said


@pytest.mark.usefixtures("handlers")
def test_a_run_that_fails_for_a_reason_of_its_own_says_it() -> None:
    def make(*args: object, **kwargs: object) -> None:
        raise EOFError("agent.zip is cut off")

    (failed,) = run_in_this_process(make)
    assert isinstance(failed, Failed)
    assert failed.sentence.startswith("EOFError: agent.zip is cut off")


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("twice", [False, True])
def test_a_run_that_is_stopped_keeps_what_it_has_and_is_not_taken_for_made(twice: bool) -> None:
    kept = []

    def make(*args: object, **kwargs: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            if twice:
                os.kill(os.getpid(), signal.SIGTERM)
            kept.append(True)

    with pytest.raises(SystemExit) as ended:
        run_in_this_process(make)
    assert ended.value.code == 1
    assert kept == [True]


@pytest.mark.usefixtures("handlers")
def test_a_run_that_nobody_answers_any_more_ends() -> None:
    def make(*args: object, workbench: Bare, **kwargs: object) -> None:
        raise NobodyAnswersError

    with pytest.raises(SystemExit) as ended:
        run_in_this_process(make)
    assert ended.value.code == 1


@pytest.mark.usefixtures("handlers")
def test_progress_comes_as_lines_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    def make(*args: object, console: Console, **kwargs: object) -> None:
        with progress_bar("train", 10, console, unit="steps") as advance:
            advance(10, {"return": 1.0})

    (said,) = run_in_this_process(make)
    assert isinstance(said, Say)
    assert said.text.startswith("train: 10/10 steps")
    assert "\x1b" not in said.text


def test_what_several_ask_is_written_once_and_errors_reach_who_asked(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: request.user.upper())

    class Broken:
        fingerprint = "broken"

        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            raise ModelError("It is broken.")

    models: dict[str, CodeModel] = {"rewriter": Broken(), "coder": CachedModel(model, GenerationCache(tmp_path))}
    found: dict[str, object] = {}

    def ask(name: str, remote: RemoteModel, *texts: str) -> None:
        try:
            found[name] = [answer.text for answer in remote.generate([GenerationRequest(text) for text in texts])]
        except ModelError as error:
            found[name] = str(error)

    pipes = [Pipe() for _ in range(3)]
    remotes = [RemoteModel(pipes[i][1], name, "print") for i, name in enumerate(("coder", "coder", "rewriter"))]
    threads = [
        Thread(target=ask, args=arguments)
        for arguments in (("one", remotes[0], "a", "b"), ("two", remotes[1], "b", "c", "b"), ("three", remotes[2], "a"))
    ]
    for thread in threads:
        thread.start()
    asked = {ours: ours.recv() for ours, _ in pipes}
    for expected in ([pipes[2][0]], [pipes[0][0], pipes[1][0]]):  # one model after the other
        answered = answer_together(asked, models)
        assert answered == expected
        asked = {connection: ask for connection, ask in asked.items() if connection not in answered}
    for thread in threads:
        thread.join()
    assert found == {"one": ["A", "B"], "two": ["B", "C", "B"], "three": "It is broken."}
    assert [request.user for request in model.requests] == ["a", "b", "c"]
    assert remotes[0].generate([]) == []


def test_a_remote_model_says_when_nobody_answers() -> None:
    ours, theirs = Pipe()
    ours.close()
    with pytest.raises(NobodyAnswersError):
        RemoteModel(theirs, "coder", "print").generate([GenerationRequest("a")])
