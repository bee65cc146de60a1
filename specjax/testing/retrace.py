"""Guards against work that should not happen: tracing or compiling again, and transfers between host and device."""
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax import monitoring

_TRACE, _COMPILE = "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class Counts:
    """Functions traced and programs compiled (or fetched from the persistent cache) since the guard began."""

    traced: int = 0
    compiled: int = 0


@contextlib.contextmanager
def compilations() -> Iterator[Counts]:
    """Counts traces and compilations in its body.

    >>> with compilations() as counts:
    ...     _ = jax.jit(lambda x: x + 1)(1.0)
    >>> counts.compiled
    1
    """
    counts = Counts()

    def listen(event: str, duration: float, **_: Any) -> None:
        del duration
        counts.traced += event == _TRACE
        counts.compiled += event == _COMPILE

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counts
    finally:
        monitoring.unregister_event_duration_listener(listen)


def no_transfers() -> contextlib.AbstractContextManager[Any]:
    """Forbids every implicit transfer between host and device in its body."""
    return jax.transfer_guard("disallow")
