"""Studies with the scripted model: what is run, what is recognised, and what Ctrl-C leaves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from promptrl.ablation import TRAINING_LABEL, VALIDATION_LABEL, ablate_reward, learning_curves
from promptrl.config import Config, load_config
from promptrl.errors import ConfigError, RunError
from promptrl.evaluation.comparison import build_comparison
from promptrl.evaluation.curves import t_interval
from promptrl.evaluation.records import read_records
from promptrl.execution import Judge
from promptrl.experiment import run_baselines, run_experiment, run_training
from promptrl.models.base import GenerationRequest
from promptrl.study import Study, run_seeds, score_table
from promptrl.workbench import Workbench
from tests.workbench import only_rewritten, scripted_workbench, small_config

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def names(study: Study) -> dict[str, tuple[str, ...]]:
    return {str(run.path.relative_to(study.output)): run.config.evaluation.methods for run in study.runs()}


def test_the_plan_of_a_study(tmp_path: Path) -> None:
    config = small_config(study={"seeds": [0, 1], "protocols": ["paper", "held_out"], "rewards": ["shaped", "binary"]})
    study = Study(config, tmp_path / "study")
    own = ("repeat-direct",)
    assert names(study) == {
        **{f"{protocol}/baselines-seed0": ("direct", *own) for protocol in study.protocols},
        # A greedy answer does not depend on the seed.
        **{f"{protocol}/baselines-seed1": own for protocol in study.protocols},
        **{f"{p}/{r}-seed{s}": ("ppo",) for p in study.protocols for r in study.rewards for s in (0, 1)},
    }
    states = [("prompt", "shaped-seed0"), ("prompt+progress", "shaped-prompt+progress-seed0")]
    richer = [run for run in Study(config, tmp_path, seeds=[0], states=[s for s, _ in states]).runs() if run.state]
    assert [(run.state, run.path.name) for run in richer if run.path.name.startswith("shaped")] == 2 * states
    assert all(run.config.environment.state == run.state for run in richer)
    for run in study.runs():
        assert run.path.parent.name == run.config.environment.protocol == run.protocol
        assert run.path.name.endswith(f"seed{run.config.seed}")
        assert run.reward in (None, run.config.environment.reward)
    assert not study.output.exists()


def test_training_s_settings_change_no_baseline(tmp_path: Path) -> None:
    plans = [Study(small_config(ppo=small_config().ppo.model_dump() | {"gamma": g}), tmp_path).runs() for g in (0.9, 1)]
    baselines, agents = zip(*plans, strict=True)
    assert baselines[0].config == baselines[1].config
    assert agents[0].config != agents[1].config


def test_defaults_and_refusals(tmp_path: Path) -> None:
    study = Study(small_config(seed=4), tmp_path)
    assert (study.seeds, study.protocols, study.rewards) == ((4,), ("held_out",), ("shaped",))
    with pytest.raises(ConfigError, match=r"study.seeds is .*needs at least one value, and each once"):
        Study(small_config(), tmp_path, seeds=[1, 1])
    with pytest.raises(ConfigError, match=r"study\.rewards\.0 is 'big'"):
        Study(small_config(), tmp_path, rewards=["big"])
    with pytest.raises(ConfigError, match=r"study\.states\.0 is 'all'"):
        Study(small_config(), tmp_path, states=["all"])
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and holds no study"):
        study.run(console=quiet())


def test_a_study_makes_what_is_missing_and_nothing_else(judge: Judge, tmp_path: Path) -> None:
    asked: list[GenerationRequest] = []

    def answer(request: GenerationRequest) -> str:
        asked.append(request)
        return only_rewritten(request)

    def study(**values: object) -> Study:
        config = small_config(evaluation={"methods": ["direct", "repeat-direct", "ppo"]})
        return Study(config, tmp_path / "study", make_workbench=scripted_workbench(judge, answer), **values)  # type: ignore[arg-type]

    first = study().run(resume=False, console=quiet())
    assert [path.name for path in first] == ["baselines-seed0", "shaped-seed0"]
    summary = json.loads((first[1] / "summary.json").read_text())
    assert [entry["method"] for entry in summary["evaluation"]] == ["ppo"]
    assert load_config(first[1] / "config.yaml").study.seeds is None
    asked.clear()
    console = quiet()
    assert study().run(console=console) == first
    assert not asked
    assert "[2/2] held_out/shaped-seed0 finished already" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="already holds a study; use --resume"):
        study().run(resume=False, console=quiet())

    before = (first[1] / "train.jsonl").read_bytes()
    more = study(seeds=[0, 1]).run(console=quiet())
    assert [path.name for path in more] == ["baselines-seed0", "baselines-seed1", "shaped-seed0", "shaped-seed1"]
    assert (first[1] / "train.jsonl").read_bytes() == before
    table = score_table(study(seeds=[0, 1]).runs())
    assert list(table["method"]) == ["direct", "repeat-direct", "ppo"]
    assert list(table["seeds"]) == [1, 2, 2]
    assert pd.isna(table.loc[0, "strict_low"])
    compared = build_comparison(more).blocks[0]
    assert {entry.label: entry.strict for entry in compared.entries} == pytest.approx(
        dict(zip(table["method"], table["strict"], strict=True))
    )
    assert (table["n"] == 3).all()


def test_more_methods_may_come_later(judge: Judge, tmp_path: Path) -> None:
    make = scripted_workbench(judge)

    def study(*methods: str, **values: object) -> Study:
        config = small_config(evaluation={"methods": methods}, **values)
        return Study(config, tmp_path / "study", make_workbench=make)

    study("direct").run(console=quiet())
    folder = tmp_path / "study" / "held_out" / "baselines-seed0"
    before = (folder / "evaluation" / "direct.jsonl").read_bytes()
    study("repeat-direct").run(console=quiet())
    assert load_config(folder / "config.yaml").evaluation.methods == ("direct", "repeat-direct")
    entries = json.loads((folder / "summary.json").read_text())["evaluation"]
    assert [entry["method"] for entry in entries] == ["direct", "repeat-direct"]
    assert (folder / "evaluation" / "direct.jsonl").read_bytes() == before
    with pytest.raises(RunError, match=r"another configuration \(generation.top_p: 0.95 there, 0.5 now\)"):
        study("direct", generation={"top_p": 0.5}).run(console=quiet())


def test_ctrl_c_says_how_to_go_on(judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = 40

    def tiring(request: GenerationRequest) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return only_rewritten(request)

    config = small_config()
    study = Study(config, tmp_path / "cut", make_workbench=scripted_workbench(judge, tiring))
    with pytest.raises(KeyboardInterrupt):
        study.run(console=quiet(), go_on="--resume --output cut")
    assert "what was made is kept, --resume --output cut goes on with it" in capsys.readouterr().err
    assert not (tmp_path / "cut" / "held_out" / "shaped-seed0" / "summary.json").exists()
    folders = [
        Study(config, tmp_path / name, make_workbench=scripted_workbench(judge)).run(console=quiet())
        for name in ("cut", "whole")
    ]
    for cut, whole in zip(*folders, strict=True):
        for path in sorted(whole.rglob("*.jsonl")):
            other = cut / path.relative_to(whole)
            if path.name == "validation.jsonl":
                assert other.read_text() == path.read_text()
                continue
            steps = [
                [(r["task_id"], r["step"], r["action"], r["reward"]) for r in read_records(p)] for p in (other, path)
            ]
            assert sorted(steps[0]) == sorted(steps[1])


def test_workbenches_share_what_they_can(judge: Judge) -> None:
    config = small_config()
    first = scripted_workbench(judge)(config)
    for change in ({"seed": 1}, {"environment": {"horizon": 2, "protocol": "paper", "reward": "binary"}}):
        other = first.with_config(small_config(**change))
        assert other.config != first.config
        assert other.coder is first.coder
        assert other.judge is first.judge
        assert other.tasks("train") is first.tasks("train")
    changed = Workbench.with_config(first, small_config(model={"batch_size": 4}, split={"n_test": 2}))
    assert "coder" not in changed.__dict__
    assert "rewriter" not in changed.__dict__
    assert "_tasks" not in changed.__dict__
    assert changed.encoder is first.encoder


def test_several_seeds_in_one_command(judge: Judge, tmp_path: Path) -> None:
    console = quiet()
    make = scripted_workbench(judge)
    config = small_config(evaluation={"methods": ["ppo"]}, study={"protocols": ["paper", "held_out"]})
    folder = run_seeds(config, [0, 1], tmp_path / "seeds", console=console, make_workbench=make)
    scores = [
        json.loads((folder / "held_out" / f"shaped-seed{seed}" / "summary.json").read_text())["evaluation"][0]
        for seed in (0, 1)
    ]
    table = pd.read_csv(folder / "seeds.csv")
    assert len(table) == 1
    strict = [score["strict"] for score in scores]
    assert table.loc[0, "strict"] == pytest.approx(sum(strict) / 2)
    assert table.loc[0, "strict_high"] == pytest.approx(t_interval(strict).high)
    markdown = (folder / "seeds.md").read_text()
    assert f"| held_out | ppo | shaped | 2 | 3 | {50 * sum(strict):.2f} [" in markdown
    assert "ppo" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="--resume needs --output"):
        run_seeds(config, [0, 1], resume=True)


def test_the_ablation_of_the_reward(judge: Judge, tmp_path: Path) -> None:
    config = small_config(ppo={**small_config().ppo.model_dump(), "total_timesteps": 64})
    folder = ablate_reward(
        config,
        tmp_path / "ablation",
        seeds=[0],
        thresholds=(0.01, 1.0),
        console=quiet(),
        make_workbench=scripted_workbench(judge),
    )
    assert {path.name for path in (folder / "held_out").iterdir()} == {
        *("shaped-seed0", "binary-seed0", "baselines-seed0"),
    }
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    svg = (folder / "learning_curves.svg").read_text()
    assert "<svg" in svg
    study = Study(config, folder, seeds=[0], rewards=["shaped", "binary"])
    curves = learning_curves(study.runs())
    assert set(curves) == {TRAINING_LABEL, VALIDATION_LABEL}
    assert [len(own) for own in curves[VALIDATION_LABEL].values()] == [1, 1]
    steps = pd.read_csv(folder / "steps_to_threshold.csv")
    assert len(steps) == 2 * 2 * 2
    assert (steps["reached"] <= steps["seeds"]).all()
    markdown = (folder / "ablation.md").read_text()
    assert "| held_out | repeat-direct | – | 1 | 3 | 0.00 |" in markdown
    assert markdown.count("| held_out | ppo |") == 2
    assert "| validation Strict Pass@1 | binary reward | 100 |" in markdown
    with pytest.raises(ConfigError, match=r"threshold 1\.5 is no share"):
        ablate_reward(config, tmp_path / "other", thresholds=(1.5,))


def test_a_run_says_which_agent_it_evaluated(judge: Judge, tmp_path: Path) -> None:
    config = small_config(evaluation={"methods": ["ppo"]})
    folder = run_experiment(config, tmp_path / "run", console=quiet(), workbench=scripted_workbench(judge)(config))
    lines = [json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines()]
    assert json.loads((folder / "summary.json").read_text())["agent"] == {
        "file": "best_agent.zip",
        "steps": [line["steps"] for line in lines if line["best"]][-1],
    }
    training = json.loads((folder / "training.json").read_text())
    assert training["stopped_early"] is False
    assert training["share"]["validation"] > 0


def test_without_validation_tasks_the_last_agent_is_kept(judge: Judge, tmp_path: Path) -> None:
    config = small_config(evaluation={"methods": ["ppo"]})
    make = scripted_workbench(judge, n_validation=0)
    folder = run_experiment(config, tmp_path / "run", console=quiet(), workbench=make(config))
    assert not (folder / "validation.jsonl").exists()
    assert json.loads((folder / "summary.json").read_text())["agent"] == {"file": "agent.zip", "steps": 32}


def test_training_alone_touches_no_test_task_and_can_be_finished_later(judge: Judge, tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: GenerationRequest) -> str:
        asked.append(request.user)
        return only_rewritten(request)

    config: Config = small_config(evaluation={"methods": ["ppo"]})
    make = scripted_workbench(judge, answer)
    folder = run_training(config, tmp_path / "run", console=quiet(), workbench=make(config))
    assert not (folder / "summary.json").exists()
    assert not (folder / "evaluation").exists()
    assert not any("def add_10(" in text or "def add_11(" in text or "def add_12(" in text for text in asked)
    assert any("def add_7(" in text for text in asked)
    before = (folder / "train.jsonl").read_bytes()
    run_experiment(config, folder, resume=True, console=quiet(), workbench=make(config))
    assert (folder / "train.jsonl").read_bytes() == before
    assert json.loads((folder / "summary.json").read_text())["evaluation"][0]["n"] == 3


def test_baselines_need_no_agent(judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the method 'ppo' needs a trained agent"):
        run_baselines(small_config(), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()
