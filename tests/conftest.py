"""Strict settings for every test, made before JAX starts: no silent dtype or rank promotion, two CPU devices, full precision.

Compiled programs are kept between runs; code is generated without optimisation, since tests care for values, not for speed.
"""
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
                           " --xla_llvm_disable_expensive_passes=true").strip()

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
_CACHE = Path(os.environ.get("SPECJAX_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specjax")
jax.config.update("jax_compilation_cache_dir", str(_CACHE / "compiled"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
