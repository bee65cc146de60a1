"""Strict settings for every test, made before JAX starts: no silent dtype or rank promotion, two CPU devices, full precision.

Code is generated without optimisation, since tests care for values, not for speed.
"""
import os

os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
                           " --xla_llvm_disable_expensive_passes=true").strip()

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
# Writing large programs to the persistent cache late in a long run has crashed the interpreter (jax 0.10.2): tests compile anew.
jax.config.update("jax_enable_compilation_cache", False)

import pytest  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def free_programs():
    """Drops a module's compiled programs at its end: thousands of them exhaust the memory maps of one process."""
    yield
    jax.clear_caches()
