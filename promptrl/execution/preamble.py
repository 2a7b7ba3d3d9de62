"""The imports that a forgiving judge supplies: the ones that models' answers most often take for granted."""

from __future__ import annotations

from typing import Final

PREAMBLE: Final = """\
import array, bisect, collections, copy, datetime, fractions, functools, heapq, itertools, json, math, operator
import random, re, statistics, string, sys, typing
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache, cmp_to_key, lru_cache, partial, reduce
from heapq import heapify, heappop, heappush, nlargest, nsmallest
from itertools import accumulate, chain, combinations, combinations_with_replacement, count, cycle, groupby
from itertools import islice, permutations, product, zip_longest
from typing import Any, Callable, Deque, Dict, FrozenSet, Generator, Iterable, Iterator, List, Optional
from typing import Sequence, Set, Tuple, Union
"""
"""Run once in the sandbox; its names are put into a candidate's module before the candidate's own first line.

No text is put before the candidate's, so line numbers stay right and `from __future__` imports stay first.
Nothing in it hides a builtin.
"""
