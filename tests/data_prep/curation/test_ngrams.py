"""Claims about the keys of n-grams."""

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.curation.measures import ngram_keys


@given(st.lists(st.integers(0, 3), max_size=40))
def test_keys_are_equal_exactly_where_the_words_are(numbers):
    for n, keys in enumerate(islice(ngram_keys(np.array(numbers, np.uint64)), 13), 1):
        ngrams = [tuple(numbers[place : place + n]) for place in range(len(numbers) - n + 1)]
        assert len(keys) == len(ngrams)
        assert len(set(ngrams)) == len(set(keys.tolist())) == len({*zip(ngrams, keys.tolist(), strict=True)})
