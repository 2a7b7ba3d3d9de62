import pytest
from ciphering import shift_letters


@pytest.mark.parametrize(
    ("text", "by", "wanted"),
    [("abc", 1, "bcd"), ("xyz", 3, "abc"), ("abc", -1, "zab"), ("a", 53, "b"), ("Ab", 25, "Za"), ("", 5, "")],
)
def test_shifts(text, by, wanted):
    assert shift_letters(text, by) == wanted


def test_there_and_back(sentence):
    shifted = shift_letters(sentence, 7)
    assert shifted == "Olssv, Dvysk! 123"
    assert shift_letters(shifted, -7) == sentence
