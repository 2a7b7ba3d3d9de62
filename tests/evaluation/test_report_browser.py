"""The report in a real browser: it draws, sorts, filters, opens by keyboard, compares, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from promptrl.evaluation.records import Record
from promptrl.evaluation.report import write_report
from tests.evaluation.browser import Browser, find_chromium
from tests.evaluation.reporting import FAILED, ODD, SOLVED, some_episodes, step


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (found := find_chromium()) is None:
        pytest.skip("no Chromium is on the path, nor named by PROMPTRL_CHROMIUM")
    try:
        browser = Browser(found, tmp_path_factory.mktemp("profile"))
    except (OSError, RuntimeError) as error:  # some packages of it cannot be driven from outside
        pytest.skip(f"{found} cannot be started here: {error}")
    yield browser
    browser.close()


@pytest.fixture
def browser(program: Browser) -> Browser:
    """The module's one browser, with nothing noted yet."""
    program.requests.clear()
    program.errors.clear()
    program.dark(False)
    return program


def opened(browser: Browser, tmp_path: Path, records: list[Record], fragment: str = "") -> Browser:
    path = tmp_path / "report.html"
    write_report(records, path, title="A report")
    browser.open(path, fragment)
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "about:", "data:"))] == []
    return browser


ROWS = "[...document.querySelectorAll('#table tbody tr.row')].map((row) => row.cells[0].textContent)"


def test_the_table_comes_first_and_sorts(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, some_episodes(12))
    assert browser.run(ROWS) == [f"Made/{n}" for n in range(12)]
    assert browser.run("document.querySelectorAll('pre').length") == 0
    assert browser.run("document.querySelector('#count').textContent") == "12 episodes"
    sort = "[...document.querySelectorAll('#table thead button')].find((b) => b.textContent === {!r}).click()"
    browser.run(sort.format("task"))
    browser.run(sort.format("task"))
    assert browser.run(ROWS) == [f"Made/{n}" for n in reversed(range(12))]
    assert browser.run("document.querySelector('th[aria-sort]').textContent") == "task"
    browser.run(sort.format("reward"))
    assert browser.run(ROWS)[:5] == ["Made/0", "Made/1", "Made/3", "Made/6", "Made/9"]


def choose(browser: Browser, name: str, value: str) -> list[str]:
    browser.run(
        f"{{ const s = document.getElementById('filter-{name}'); s.value = {value!r};"
        " s.dispatchEvent(new Event('change')); }"
    )
    rows: list[str] = browser.run(ROWS)
    return rows


def test_filters(browser: Browser, tmp_path: Path) -> None:
    searched = step("Made/7", 0, method="direct", episode=7, error="ZeroDivisionError: Division", **FAILED)
    opened(browser, tmp_path, [*some_episodes(6), searched | {"benchmark": "made"}])
    assert choose(browser, "solved", "yes") == ["Made/0", "Made/3"]
    assert choose(browser, "solved", "misled") == ["Made/1"]
    assert browser.run("document.querySelector('#count').textContent") == "1 of 7 episodes"
    assert len(choose(browser, "solved", "")) == 7
    assert choose(browser, "action", "semantic") == [f"Made/{n}" for n in range(6)]
    choose(browser, "action", "")
    assert choose(browser, "method", "direct") == ["Made/7"]
    choose(browser, "method", "")
    # One benchmark is nothing to choose from.
    assert browser.run("document.getElementById('filter-benchmark')") is None
    found = browser.run(
        "new Promise((done) => { const t = document.getElementById('filter-text'); t.value = 'zerodivision';"
        " new MutationObserver(() => done(" + ROWS + ")).observe(document.getElementById('count'), {childList: true});"
        " t.dispatchEvent(new Event('input')); })"
    )
    assert found == ["Made/7"]


def test_episodes_open_and_close_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, some_episodes(4))
    browser.run("document.querySelector('button.open').focus()")
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.run("document.activeElement.textContent") == "Made/1"
    assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert browser.run("location.hash") == "#episode-1"
    detail = "document.querySelector('tr.detail')"
    assert browser.run(f"{detail}.previousElementSibling.cells[0].textContent") == "Made/1"
    text = browser.run(f"{detail}.innerText")
    assert "Step 1: direct" in text
    assert "reward\n0.5" in text
    assert "Step 2: semantic" in text
    assert "return x + 1" in text
    marks = f"[...{detail}.querySelectorAll('{{}}')].map((node) => node.textContent.trim())"
    assert browser.run(marks.format("del"))[0].startswith("Add")
    assert "Increase" in browser.run(marks.format("ins"))[0]
    assert browser.run(marks.format(".outcome")) == ["✓ test 1 passed", "✗ test 2 wrong", "✓ tests 1–2 passed"]
    browser.press("Escape")
    assert browser.run(detail) is None
    assert browser.run("document.activeElement.textContent") == "Made/1"
    browser.press("/", "/")
    assert browser.run("document.activeElement.id") == "filter-text"


def test_a_link_opens_its_episode(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, some_episodes(700), "#episode-650")
    assert browser.run("document.querySelector('tr.opened').cells[0].textContent") == "Made/650"
    # Only as many rows are drawn as it takes.
    opened(browser, tmp_path, some_episodes(700))
    assert browser.run(f"{ROWS}.length") == 500
    assert browser.run("document.querySelector('#more').textContent") == "Show 200 more of 200"
    browser.run("document.querySelector('#more').click()")
    assert browser.run(f"{ROWS}.length") == 700


def test_odd_text_is_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    texts = ("method", "task_id", "action", "code", "answer", "error", "note", "status", "run", "benchmark")
    about = dict.fromkeys(texts, ODD)
    records = [
        step("", 0, prompt="before", **about),
        step("", 1, **{**about, **FAILED, "status": ODD, "prompt": ODD}),
        step("other", 0, **SOLVED),
    ]
    opened(browser, tmp_path, records)
    browser.run("document.querySelectorAll('button.open').forEach((button) => button.click())")
    assert browser.errors == []
    assert browser.run("window.hit") is None
    assert browser.run("document.querySelectorAll('img, body script:not(#data)').length") == 1
    seen = ODD.replace("\0", "\\u0000").replace("\ud800", "\\ud800").replace("\u2028", "\\u2028")
    seen = seen.replace("\u202e", "\\u202e")
    assert browser.run("document.querySelector('button.open').textContent") == seen
    assert browser.run("document.querySelector('pre.code').textContent") == seen
    assert browser.run("document.querySelector('p.error').textContent") == f"Error: {seen}"
    added = "[...document.querySelector('.step:nth-child(2) pre.prompt').children]"
    words = f"{added}.filter((node) => node.tagName !== 'DEL').map((node) => node.textContent).join('')"
    assert browser.run(words) == seen


def test_two_runs_task_by_task(browser: Browser, tmp_path: Path) -> None:
    old, new = some_episodes(6, run="old"), some_episodes(6, run="new")
    for record in new:
        if record["task_id"] == "Made/2" and record["step"] == 1:
            record.update(SOLVED)
        if record["task_id"] == "Made/3" and record["step"] == 1:
            record.update(FAILED)
    opened(browser, tmp_path, [*old, *new[:-2]])
    heads = "[...document.querySelectorAll('#table thead button')].map((button) => button.textContent)"
    assert "run" in browser.run(heads)
    browser.run("document.getElementById('tab-compare').click()")
    assert browser.run("[document.getElementById('episodes').hidden, document.getElementById('compare').hidden]") == [
        True,
        False,
    ]
    said = browser.run("document.getElementById('changes').textContent")
    assert said == "6 tasks, 1 gained by B, 1 lost by B, 0 with another pass rate, 3 the same, 1 in one only"
    cells = "[...row.cells].slice(0, 2).map((cell) => cell.textContent)"
    rows = f"[...document.querySelectorAll('#pairs tr.row')].map((row) => {cells})"
    assert browser.run(rows) == [["Made/2", "▲ gained"], ["Made/3", "▼ lost"]]
    browser.run("document.querySelector('#pairs button.open').click()")
    assert browser.run("document.querySelectorAll('.sides .step').length") == 4
    assert browser.errors == []


def test_light_dark_and_narrow(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, some_episodes(4))
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.dark(True)
    assert browser.run(paper) != light
    browser.run("document.querySelector('button.open').click()")
    browser.size(400, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 400
    browser.size(1280, 900)
