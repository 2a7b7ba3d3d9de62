import pytest
from rotations import is_rotation


@pytest.mark.parametrize(("first", "second"), [("abcd", "cdab"), ("aab", "aba"), ("same", "same"), ("", "")])
def test_rotations(first, second):
    assert is_rotation(first, second) is True


@pytest.mark.parametrize(("first", "second"), [("abcd", "acbd"), ("ab", "abab"), ("abc", "ab")])
def test_others(first, second):
    assert is_rotation(first, second) is False
