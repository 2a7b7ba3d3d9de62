def is_rotation(first: str, second: str) -> bool:
    """Tell whether one text is a rotation of the other: some characters moved from its start to its end."""
