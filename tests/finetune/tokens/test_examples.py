"""finetune/tokens/examples.py: the same examples have one name, others another."""

from finetune.tokens.examples import answers_folder, sha256_of


def test_whatever_a_part_holds_and_their_order_change_the_fingerprint() -> None:
    assert sha256_of(["a", 1]) == sha256_of(iter(["a", 1]))
    assert len({sha256_of(parts) for parts in ([], ["a", 1], [1, "a"], ["a", "1"], ["a", 1, None])}) == 5


def test_other_test_examples_have_another_folder() -> None:
    assert answers_folder(["a"]) == answers_folder(["a"]) != answers_folder(["b"])
    assert answers_folder(["a"]).startswith("test-")
