from common_prefix import common_prefix

assert common_prefix(["flower", "flow", "flight"]) == "fl"
assert common_prefix(["a", "b"]) == ""
assert common_prefix([]) == ""
assert common_prefix(["same", "same"]) == "same"
