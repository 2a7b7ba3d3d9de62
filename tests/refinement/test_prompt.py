from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptrl.refinement.prompt import Prompt, protected_spans, tokenize

PIECES = st.sampled_from(
    [
        "sort",
        "the list",
        "`x_1`",
        "3.5",
        "-2",
        "don't",
        "'abc'",
        '"q"',
        "my_name",
        "camelCase",
        "f(",
        ".",
        "\n",
        "é",
        "```\na\n```",
    ]
)


@given(st.text() | st.lists(PIECES).map(" ".join))
def test_tokens_joined_give_back_the_text(text: str) -> None:
    assert "".join(token.text for token in tokenize(text)) == text


def test_protected_spans() -> None:
    text = "Don't sort `xs` by my_key, use camelCase(3) or 'ab c' and 2.5e3. It's 1,000 long, lst1 too."
    assert protected_spans(text) == {"`xs`", "my_key", "camelCase", "3", "'ab c'", "2.5e3", "1,000", "lst1"}


def test_words_that_may_be_edited() -> None:
    assert [token.text for token in tokenize("Sort `xs` it's 3 well-known") if token.is_word] == [
        "Sort",
        "it's",
        "well-known",
    ]


def test_render_joins_instruction_and_contract() -> None:
    assert Prompt("Add one.\n", "\ndef f(x):\n    ...").render() == "Add one.\n\ndef f(x):\n    ..."
    assert Prompt("", "def f(x):").render() == "def f(x):"
