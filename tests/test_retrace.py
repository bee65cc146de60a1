"""Nothing is compiled twice and nothing goes to the host inside the loop."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decode, methods
from specjax.testing import checks
from specjax.testing.retrace import compilations, no_transfers
from tests import tiny


def test_a_second_generation_of_the_same_shapes_compiles_nothing():
    model = tiny.model()

    def once(seed: int, temperature: float) -> None:
        m, params = methods.get("lookup").build(model)
        checks.generate(model, m, params, [[1, 2, 3], [4]], 12, temperature, seed=seed)

    with compilations() as first:
        once(0, 0.0)
    with compilations() as second:
        once(1, 0.7)  # seeds, temperatures and prompts are data
    assert first.compiled > 0 and (second.compiled, second.traced) == (0, 0)
    with compilations() as other:
        jax.jit(lambda x: x * 3)(jnp.ones(7))
    assert other.compiled >= 1


def test_the_loop_transfers_nothing():
    model = tiny.model()
    m, params = methods.get("lookup").build(model)
    state = decode.begin(m, params, [[1, 2, 3], [4]], max_new_tokens=12)
    budget = jnp.int32(100)
    with no_transfers():
        state = jax.block_until_ready(decode.run(m, params, state, budget))
        with pytest.raises(Exception, match="transfer"):
            jnp.add(budget, np.ones(3, np.int32)[0])
    assert int(state.index[0]) == 11
