from runs import longest_run

assert longest_run("aabbbc") == ("b", 3)
assert longest_run("xxyyxx") == ("x", 2)
assert longest_run("abccc") == ("c", 3)
assert longest_run("abab") == ("a", 1)
assert longest_run("") == ("", 0)
