"""Which kept text a prompt continues."""
from specjax.serving.prefixes import Prefixes


def test_the_longest_proper_prefix_is_found_and_the_least_recent_goes():
    kept = Prefixes(2)
    kept.keep([1, 2], lambda: "a", 1)
    kept.keep([5, 6], lambda: "b", 1)
    assert kept.longest([1, 2, 9]).row == "a"
    kept.keep([1, 2, 3, 4], lambda: "c", 3)  # continues [1, 2], which it replaces
    assert kept.longest([1, 2, 3, 4, 5]).row == "c" and kept.longest([1, 2, 9]) is None and kept.longest([5, 6, 7]).row == "b"
    kept.keep([7, 7], lambda: "d", 1)
    assert kept.longest([1, 2, 3, 4, 5]) is None and kept.longest([5, 6, 7]).row == "b" and len(kept) == 2


def test_nothing_is_kept_without_room_and_the_row_is_not_even_made():
    kept = Prefixes(0)
    kept.keep([1, 2], lambda: 1 / 0, 1)
    assert kept.longest([1, 2, 3]) is None
