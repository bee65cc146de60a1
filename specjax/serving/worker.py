"""One thread that drives an engine, so that an event loop never waits for a pass."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from specjax.serving.engine import Engine
from specjax.serving.tickets import Event, Ticket
from specjax.settings import Settings


class Worker:
    """Drives an engine from its own thread until it is closed; sleeps while there is nothing to do.

    Args:
      engine: nobody else may call its `step`.
    """

    def __init__(self, engine: Engine):
        self.engine, self._wake, self._open = engine, threading.Condition(), True
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, name="specjax engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: Sequence[int], settings: Settings, listener: Callable[[Event], None] | None = None) -> Ticket:
        """`Engine.submit`, and wakes the thread.

        Raises:
          RuntimeError: the engine's thread has died; its error is the cause.
        """
        if self.failure is not None:
            raise RuntimeError("the engine has stopped after an error") from self.failure
        ticket = self.engine.submit(prompt, settings, listener)
        with self._wake:
            self._wake.notify()
        return ticket

    def close(self) -> None:
        """Cancels what is left and ends the thread."""
        with self._wake:
            self._open = False
            self._wake.notify()
        self._thread.join()

    def _drive(self) -> None:
        try:
            while True:
                busy = self.engine.step()
                with self._wake:
                    if not self._open:
                        break
                    if not busy and not self.engine.pending:
                        self._wake.wait()
            self.engine.cancel_all()
            self.engine.step()
        except BaseException as error:
            self.failure = error
            self.engine.abandon()
            raise
