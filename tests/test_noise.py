"""The generator: uniform in every coordinate, independent between neighbours in every coordinate, pinned values."""
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import noise as coins

_N = 1 << 14


def _words(**changed: np.ndarray) -> np.ndarray:
    """32-bit words while one coordinate runs and the others stay."""
    at = {"seed": 7, "request": 3, "index": 11, "row": 2, "ids": 5, "stream": 0, "purpose": coins.DRAW}
    (name, values), = changed.items()
    noise = coins.Noise(jnp.uint32(at["seed"]), jnp.asarray([at["request"]]))
    if name == "seed":
        return np.concatenate([np.asarray(coins.bits(*coins.words(noise._replace(seed=jnp.uint32(v)), coins.DRAW, jnp.asarray([11]), 2),
                                                     jnp.asarray([5]))) for v in values])
    if name == "stream":
        return np.concatenate([np.asarray(coins.bits(*coins.words(noise._replace(stream=int(v)), coins.DRAW, jnp.asarray([11]), 2),
                                                     jnp.asarray([5]))) for v in values])
    grid = {k: jnp.full(values.shape, v) for k, v in at.items()} | {name: jnp.asarray(values)}
    noise = noise._replace(request=grid["request"])
    a, b = coins.words(noise, coins.DRAW, grid["index"], 2) if name != "row" else coins.words(
        noise._replace(request=jnp.asarray([3])), coins.DRAW, jnp.full((1, values.size), 11), jnp.asarray(values)[None])
    return np.asarray(coins.bits(a.reshape(-1), b.reshape(-1), grid["ids"]))


@pytest.mark.parametrize("name", ["request", "index", "row", "ids"])
def test_S04_uniform_and_independent_along_a_coordinate(name: str):
    words = _words(**{name: np.arange(_N, dtype=np.int32)})
    u = (words.astype(np.float64) + 0.5) / 2**32
    counts = np.histogram(u, 64, (0, 1))[0]
    assert abs((counts - _N / 64) ** 2 / (_N / 64)).sum() < 63 + 6 * np.sqrt(2 * 63)  # chi-square, 6 sigma
    for lag in (1, 2, 3, 16, 64, 256):
        pairs = np.histogram2d(u[:-lag], u[lag:], 8, ((0, 1), (0, 1)))[0]
        expected = (_N - lag) / 64
        assert ((pairs - expected) ** 2 / expected).sum() < 63 + 6 * np.sqrt(2 * 63), lag
    flips = np.unpackbits((words[:-1] ^ words[1:]).view(np.uint8)).mean()
    assert abs(flips - 0.5) < 6 * 0.5 / np.sqrt(32 * _N)


@pytest.mark.parametrize("name", ["seed", "stream"])
def test_seeds_and_streams_give_unrelated_coins(name: str):
    words = _words(**{name: np.arange(64, dtype=np.uint32)})
    assert len(np.unique(words)) == 64
    flips = np.unpackbits((words[:-1] ^ words[1:]).view(np.uint8)).mean()
    assert abs(flips - 0.5) < 6 * 0.5 / np.sqrt(32 * 63)


def test_purposes_do_not_share_coins_and_the_text_has_no_stream():
    noise = coins.Noise(jnp.uint32(1), jnp.arange(4))
    index, ids = jnp.arange(4), jnp.arange(8)
    draws = [np.asarray(coins.race_times(noise, p, index, 0, ids)) for p in (coins.TEXT, coins.DRAW, coins.EXTRA)]
    assert all(not np.any(a == b) for i, a in enumerate(draws) for b in draws[:i])
    other = noise._replace(stream=9)
    np.testing.assert_array_equal(draws[0], np.asarray(coins.race_times(other, coins.TEXT, index, 0, ids)))
    assert not np.any(draws[1] == np.asarray(coins.race_times(other, coins.DRAW, index, 0, ids)))


def test_S06_exponentials_are_float32_positive_and_fine_near_zero():
    extremes = coins.exponential_from(jnp.asarray([0, 1, 2, 0xFFFFFFFF], jnp.uint32))
    values = np.asarray(extremes, np.float64)
    assert extremes.dtype == jnp.float32 and np.all(np.isfinite(values)) and np.all(values > 0)
    np.testing.assert_allclose(values[:3], (np.arange(3) + 0.5) / 2**32, rtol=1e-6)


def test_coins_are_pinned():
    """A change of the generator changes every seeded text of every user: it must be on purpose."""
    noise = coins.Noise(jnp.uint32(42), jnp.asarray([7]))
    a, b = coins.words(noise, coins.TEXT, jnp.asarray([5]), 0)
    assert [int(x) for x in coins.bits(a[:, None], b[:, None], jnp.asarray([[0, 1, 49151]]))[0]] == PINNED


PINNED = [4172583973, 4259009412, 4066390526]
