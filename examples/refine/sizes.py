def format_bytes(count: int) -> str:
    """Write a number of bytes for people: "512 B", "1.5 KB", "2.0 MB", "3.2 GB".

    A unit is 1024 of the one before it; bytes are whole, everything else has one digit after the point.
    """
