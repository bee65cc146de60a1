"""Every mutation of the spine turns its check red, and the same check is green without it."""
import jax
import pytest

from specjax import noise, tree
from specjax.testing import mutations

NAMES = tuple(mutations.MUTATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_mutation_is_noticed(name: str):
    found = mutations.noticed(name)
    assert not found.ok, f"{found.name} did not notice {name}: {found.value} ({found.note})"


@pytest.mark.parametrize("check", sorted({(m.check, m.prepare) for m in mutations.MUTATIONS.values()}, key=lambda x: id(x)),
                         ids=lambda _: "check")
def test_check_is_green_without_a_mutation(check):
    run, prepare = check
    found = run(prepare(), "")
    assert found.ok, found


def test_functions_are_restored_and_unknown_names_refused():
    before = tree.rows, tree.ancestors, noise.child
    with pytest.raises(RuntimeError, match="inside"), mutations.broken("wrong_parent"):
        assert tree.rows is not before[0]
        raise RuntimeError("inside")
    assert (tree.rows, tree.ancestors, noise.child) == before
    with pytest.raises(ValueError, match="unknown mutation 'x'; known: shifted_position"):
        mutations.noticed("x")
    assert jax.config.jax_numpy_rank_promotion == "raise"
