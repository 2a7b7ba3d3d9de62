import pytest


@pytest.fixture
def sentence():
    return "Hello, World! 123"
