from __future__ import annotations

import numpy as np

from headstart.drafting.common_prefix import common_prefix


def test_slices_find_what_tokens_one_by_one_find() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        first = rng.integers(0, 2, size=rng.integers(0, 12)).tolist()
        second = rng.integers(0, 2, size=rng.integers(0, 12)).tolist()
        longest = int(rng.integers(0, 12))
        naive = 0
        while naive < min(len(first), len(second), longest) and first[naive] == second[naive]:
            naive += 1
        assert common_prefix(first, second, longest) == naive
