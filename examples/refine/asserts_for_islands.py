from islands import count_islands

assert count_islands([1, 1, 0, 1]) == 2
assert count_islands([0, 0]) == 0
assert count_islands([1]) == 1
assert count_islands([]) == 0
