"""Bad configurations end in one sentence that names the key, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptrl.config import Config, load_config, parse_config
from promptrl.errors import ConfigError
from promptrl.models import resolve_style

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert load_config(path).benchmark


@pytest.mark.parametrize("path", sorted((CONFIGS / "backbones").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_backbone_fits_an_experiment(path: Path) -> None:
    config = load_config(f"mbpp_plus.yaml,{path.stem}")
    assert (config.benchmark, config.ppo.n_envs) == ("mbpp_plus", 128)
    automatic = config.model.model_copy(update={"prompt_style": "auto"})
    assert resolve_style(config.model) == resolve_style(automatic) == config.model.prompt_style
    assert (config.rewriter is None) == (config.model.prompt_style == "chat")  # the others follow no instruction
    assert config.model.trust_remote_code == path.stem.endswith(("-2b", "-6b", "-16b"))


def test_backbones_are_those_of_the_literature() -> None:
    names = {path.stem for path in (CONFIGS / "backbones").glob("*.yaml")}
    assert names == {
        *(f"codet5p-{size}" for size in ("220m", "770m", "2b", "6b", "16b")),
        *("instructcodet5p-16b", "codellama-7b", "codellama-7b-instruct", "starcoder2-3b", "starcoder2-7b"),
        *(f"deepseek-coder-{size}{kind}" for size in ("1.3b", "6.7b") for kind in ("", "-instruct")),
        *(f"qwen2.5-coder-{size}" for size in ("0.5b", "1.5b", "7b")),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ppo": {"n_stepz": 3}}, r"unknown key 'ppo.n_stepz', did you mean 'n_steps'\?"),
        ({"zebra": 1}, "unknown key 'zebra'; allowed are name, seed, benchmark"),
        ({"operators": {"lexical": {"rate": 1}}}, "unknown key 'operators.lexical.rate'"),
        (
            {"benchmark": "humanevil"},
            "benchmark is 'humanevil': unknown benchmark; allowed are humaneval, humaneval_plus",
        ),
        (
            {"evaluation": {"methods": ["drect"]}},
            "unknown method 'drect'; allowed are direct, repeat-direct, random-hybrid",
        ),
        ({"environment": {"horizon": 0}}, "environment.horizon is 0: input should be greater than or equal to 1"),
        ({"evaluation": {"budget": {"calls": 0}}}, "evaluation.budget.calls is 0: input should be greater than"),
        ({"evaluation": {"budget": {"token": 9}}}, "unknown key 'evaluation.budget.token', did you mean 'tokens'"),
        ({"methods": {"epic": {"mutator": "x"}}}, "methods.epic.mutator is 'x': input should be 'words' or 'model'"),
        ({"methods": {"reflexion": {"memory": 4}}}, "methods.reflexion.memory is 4: input should be less than"),
        ({"environment": {"reward": "big"}}, "environment.reward is 'big': input should be 'shaped' or 'binary'"),
        ({"ppo": {"learning_rate": "fast"}}, "ppo.learning_rate is 'fast': input should be a valid number"),
        ({"environment": {"protocol": "held_out"}}, "'held_out' needs report tests, which 'humaneval' lacks"),
        ({"environment": {"actions": ["direct", "direct"]}}, "needs at least one action, and each once"),
        (
            {"environment": {"actions": ["direct", "foo"]}},
            "unknown action 'foo'; allowed are direct, lexical, semantic",
        ),
        ({"environment": {"actions": ["lexical"]}}, "direct, repeat-direct, which need the action 'direct'"),
        (
            {"environment": {"protocol": "held_out"}, "benchmark": "apps"},
            "'held_out' needs report tests, which 'apps' lacks",
        ),
        ({"evaluation": {"methods": ["direct", "direct"]}}, "needs at least one method, and each once"),
        ({"ppo": {"n_envs": 1, "n_steps": 1}}, "n_steps × n_envs is 1"),
        ({"ppo": {"batch_size": 4096}}, "batch_size is 4096; at most n_steps × n_envs = 256"),
        ({"ppo": {"net_arch": [-5]}}, "ppo.net_arch.pi.0 is -5: input should be greater than or equal to 1"),
        ({"ppo": {"learning_rate": float("inf")}}, "ppo.learning_rate is inf: input should be a finite number"),
        (
            {"generation": {"temperature": float("nan")}},
            "generation.temperature is nan: input should be a finite number",
        ),
        ({"seed": 5_000_000_000}, "seed is 5000000000: input should be less than 2147483648"),
        ({"ppo": 3}, "ppo is 3: input should be a mapping of total_timesteps, n_envs"),
    ],
)
def test_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(values)


def test_base_is_joined_and_overridden(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 3\nppo: {n_steps: 16, gamma: 0.5}\n")
    (tmp_path / "mine.yaml").write_text("base: base.yaml\nppo: {n_steps: 32}\n")
    config = load_config(tmp_path / "mine.yaml", ["ppo.n_envs=2", "environment.actions=[direct, lexical]"])
    assert (config.seed, config.ppo.n_steps, config.ppo.gamma, config.ppo.n_envs) == (3, 32, 0.5, 2)
    assert config.environment.actions == ("direct", "lexical")


def test_several_files_are_laid_over_each_other(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("seed: 1\nppo: {n_steps: 16, gamma: 0.5}\n")
    (tmp_path / "two.yaml").write_text("seed: 2\nppo: {n_steps: 32}\n")
    (tmp_path / "both.yaml").write_text("base: [one.yaml, two.yaml]\nname: both\n")
    (tmp_path / "a,b.yaml").write_text("seed: 9\n")
    for name in (f"{tmp_path}/one.yaml, {tmp_path}/two.yaml", tmp_path / "both.yaml"):
        config = load_config(name)
        assert (config.seed, config.ppo.n_steps, config.ppo.gamma) == (2, 32, 0.5)
    assert load_config(f"{tmp_path}/two.yaml,{tmp_path}/one.yaml").seed == 1
    assert load_config(tmp_path / "a,b.yaml").seed == 9
    with pytest.raises(ConfigError, match="there is no configuration 'codelama-7b'"):
        load_config("quickstart.yaml,codelama-7b")


def test_resolved_config_reads_back_to_the_same(tmp_path: Path) -> None:
    config = Config(seed=5)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config


def test_bad_files_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").write_text("base: loop.yaml\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    for name, message in (
        ("loop.yaml", "comes back to itself"),
        ("list.yaml", "holds a list; a configuration is a mapping"),
        ("broken.yaml", "cannot be read as YAML"),
        ("missing.yaml", "neither as a path nor in configs/"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(tmp_path / name)
    with pytest.raises(ConfigError, match=r"--set 'seed' is not of the form key\.subkey=value"):
        load_config(CONFIGS / "base.yaml", ["seed"])
    for override in (".a=1", "a.=1", "=1"):
        with pytest.raises(ConfigError, match="is not of the form key"):
            load_config(CONFIGS / "base.yaml", [override])
    with pytest.raises(ConfigError, match="neither as a path nor in configs/"):
        load_config("x" * 300)
    with pytest.raises(ConfigError, match="'seed' has no keys below it"):
        load_config(CONFIGS / "base.yaml", ["seed.x=1"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("ppo.n_stepz=3", "--set 'ppo.n_stepz=3': unknown key 'ppo.n_stepz', did you mean 'n_steps'?"),
        (
            "environment.reward=best",
            "--set 'environment.reward=best': environment.reward is 'best': input should be 'shaped' or 'binary'",
        ),
    ],
)
def test_a_bad_override_is_what_the_error_names(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config("base.yaml", ["seed=1", override])
    assert str(error.value) == said
