"""Finding weights, naming them by what they contain, and turning a GGUF file into a folder that loads fast."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import struct
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from promptrl.errors import AssetError, ConfigError, ModelError
from promptrl.models.linear import can_pack
from promptrl.models.settings import ModelSettings

logger = logging.getLogger(__name__)

_CONVERSION_VERSION = 1
_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_MARKER = "promptrl.json"


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file or a folder of weights, with the sha256 of what it holds."""

    path: Path
    sha256: str

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"


def find_weights(settings: ModelSettings, cache_dir: Path | None) -> Weights:
    """Locate the weights and hash them, without loading any.

    Raises:
        AssetError: If they are not there.
    """
    path = settings.path
    if path is None:
        from promptrl.assets import find_model

        path = find_model(settings.name)
    path = path.expanduser().absolute()
    if not path.exists():
        raise AssetError(f"The model's weights {path} do not exist.")
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(ggufs) == 1:
            path = ggufs[0]
        elif not (path / "config.json").exists():
            raise AssetError(f"The folder {path} holds neither a config.json nor a single GGUF file.")
    elif path.suffix != ".gguf":
        raise AssetError(f"The model's path {path} is neither a folder nor a .gguf file.")
    return Weights(path, hash_weights(path, cache_dir))


def hash_weights(path: Path, cache_dir: Path | None) -> str:
    """sha256 of a file, or of a folder's files with their names.

    Half a gigabyte takes a second or more at each start, so the hash of a file is remembered under its path, size and
    time of change.
    """
    if path.is_file():
        return _hash_file(path, cache_dir)
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.suffix not in (".md", ".gguf"):
            digest.update(f"{file.name} {_hash_file(file, cache_dir)}\n".encode())
    return digest.hexdigest()


def _hash_file(path: Path, cache_dir: Path | None) -> str:
    path = path.resolve()
    status = path.stat()
    store = None if cache_dir is None else cache_dir / "hashes.json"
    key = f"{path}|{status.st_size}|{status.st_mtime_ns}"
    known: dict[str, str] = {}
    if store is not None:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(store.read_text(encoding="utf-8"))
    if key in known:
        return known[key]
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    if store is not None:
        known = {name: sha for name, sha in known.items() if not name.startswith(f"{path}|")} | {key: value}
        with contextlib.suppress(OSError):  # only a convenience: without it the next start hashes again
            store.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(store, json.dumps(known, indent=0))
    return value


def _write_atomically(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


def loadable_folder(weights: Weights, cache_dir: Path | None) -> Path:
    """A folder that transformers loads directly: the given one, or a GGUF file's weights as bfloat16 safetensors.

    The conversion takes tens of seconds and some three times the file in memory and disk, and happens once: it is
    written under another name and renamed when whole, so a crash leaves nothing that would be taken for it.

    Raises:
        ModelError: If the file cannot be read as a model.
    """
    if not weights.is_gguf:
        return weights.path
    if cache_dir is None:
        cache_dir = Path(tempfile.gettempdir()) / "promptrl"
    folder = cache_dir / "converted" / f"{weights.path.stem}-{weights.sha256[:16]}-v{_CONVERSION_VERSION}"
    with contextlib.suppress(OSError, ValueError):
        if json.loads((folder / _MARKER).read_text(encoding="utf-8")).get("source_sha256") == weights.sha256:
            return folder
    gigabytes = weights.path.stat().st_size / 1e9
    logger.warning("converting %s once to bfloat16 (about %.1f GB of disk)", weights.path.name, 3 * gigabytes)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise ModelError(f"The converted model cannot be kept in {folder.parent}: {error.strerror}.") from error
    try:
        _convert_gguf(weights.path, partial)
        (partial / _MARKER).write_text(
            json.dumps({"source": weights.path.name, "source_sha256": weights.sha256}), encoding="utf-8"
        )
        if folder.exists():  # left by something else than this function, or made by another process just now
            shutil.rmtree(folder, ignore_errors=True)
        partial.chmod(0o755)
        with contextlib.suppress(FileExistsError, OSError):
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if not (folder / _MARKER).exists():
        raise ModelError(f"The converted model could not be put in place at {folder}.")
    return folder


def _convert_gguf(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        # The conversion's own bar knows no switch, and fills a log with a line per tensor.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            model = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
                low_cpu_mem_usage=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except (ValueError, OSError, KeyError, RuntimeError, ImportError, struct.error) as error:
        raise ModelError(f"The GGUF file {path} cannot be read as a model: {_first_line(error)}") from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the library's progress bars and hints off the terminal."""
    from transformers.utils import logging

    library: Any = logging
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def pick_device(settings: ModelSettings) -> torch.device:
    """The device meant by the settings; `auto` is a GPU where there is one, but the CPU for int8.

    Raises:
        ConfigError: For a device that torch does not know or this machine does not have.
    """
    if settings.device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        if settings.quantization == "int8":
            logger.warning("model.quantization is 'int8', so the model runs on the CPU; with 'none' the GPU is used.")
            return torch.device("cpu")
        return torch.device("cuda")
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise ConfigError(f"model.device is {settings.device!r}; it must be auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"model.device is {settings.device!r}, but this machine has no usable GPU.")
    return device


def pick_dtype(settings: ModelSettings, device: torch.device) -> torch.dtype:
    """The precision of the activations; `auto` takes bfloat16 only where the hardware multiplies it.

    Elsewhere bfloat16 is emulated, which is three to six times slower than float32. With int8 it is taken where the
    CPU has the instructions of `int8-wide`, whose other layers are bfloat16.

    Raises:
        ConfigError: For int8 anywhere but on a CPU.
    """
    if settings.quantization == "int8" and device.type != "cpu":
        raise ConfigError(
            "model.quantization is 'int8', which runs on a CPU only; set model.device to cpu or leave it out."
        )
    if settings.dtype != "auto":
        dtype: torch.dtype = getattr(torch, settings.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "cpu" and not cpu_multiplies_bfloat16():
        return torch.float32
    if settings.quantization == "int8" and not can_pack("int8-wide"):
        return torch.float32
    return torch.bfloat16


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has AVX-512 BF16 or AMX."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(bool(check()) for check in checks if check is not None)
