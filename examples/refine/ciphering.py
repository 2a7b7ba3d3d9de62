def shift_letters(text: str, by: int) -> str:
    """Shift each letter by a number of places in the alphabet, around its end, and keep its case.

    Everything that is no letter stays as it is. The number may be negative, or larger than 26.

    >>> shift_letters("xyz", 3)
    'abc'
    """
    raise NotImplementedError
