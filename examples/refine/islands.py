def count_islands(values: list[int]) -> int:
    """Count the groups of neighbouring ones in a list of zeros and ones."""
