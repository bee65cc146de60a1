"""Compiled programs kept between runs, in the cache folder of specjax: the second start of a command compiles nothing."""
from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_compiled(least_seconds: float = 0.05) -> Path | None:
    """Turns JAX's persistent compilation cache on, unless JAX's own variables or settings already say where it is.

    Args:
      least_seconds: programs that compile faster are not kept.

    Returns:
      The folder, or None when the user's own settings were left alone.
    """
    from specjax.weights.default_target import cache_folder
    if os.environ.get("JAX_COMPILATION_CACHE_DIR") or jax.config.jax_compilation_cache_dir:
        return None
    folder = cache_folder() / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    return folder
