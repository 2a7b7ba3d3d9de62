from sizes import format_bytes

assert format_bytes(512) == "512 B"
assert format_bytes(0) == "0 B"
assert format_bytes(1024) == "1.0 KB"
assert format_bytes(1536) == "1.5 KB"
assert format_bytes(2 * 1024**2) == "2.0 MB"
assert format_bytes(3435973837) == "3.2 GB"
