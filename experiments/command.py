"""How every command of this folder starts and ends: bad input and Ctrl-C give one line on stderr, never a traceback.

Importing this is cheap, and a command imports what is heavy inside its `main`, so that a mistyped flag is answered at once.
"""
from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl import app, flags, logging

BAD_INPUT, INTERRUPTED = 2, 130
"""Exit codes."""

leave = os._exit

_CONFIG = flags.DEFINE_string("config", None, "A file of configs/: its fields are the defaults of the flags of the same names; "
                              "flags that are given win.")


def fail(message: str) -> NoReturn:
    """Ends the program over bad input: one line on stderr, exit code 2."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(BAD_INPUT)


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Around the part of a command that reads and checks its input: a ValueError or OSError there is the user's to mend.

    Errors elsewhere are faults of the program and keep their traceback.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error))


def run(main: Callable[[list[str]], None], argv: Sequence[str] | None = None) -> NoReturn:
    """Parses the flags, runs `main`, and exits.

    Args:
      main: takes the arguments that are no flags, the program's name first. argv: default: the command line.
    """
    def parse(args: Sequence[str]) -> list[str]:
        try:
            return app.parse_flags_with_usage(args) if _asks_for_help(args) else flags.FLAGS(args)
        except flags.Error as error:
            fail(f"{error} (--help lists the flags)")

    def guarded(args: list[str]) -> None:
        if args[1:]:
            fail(f"{args[1]!r} is no flag: this command takes flags only (--help lists them)")
        if _CONFIG.value is not None:
            with checking():
                _take(_CONFIG.value)
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # JAX tells at the level of information which accelerators are absent
        main(args)

    try:
        app.run(guarded, argv=list(sys.argv if argv is None else argv), flags_parser=parse)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # Every `finally` has run. A thread may still be compiling, and the interpreter's own way out would pull the compiler from under it.
        leave(INTERRUPTED)


def _take(path: str) -> None:
    """Sets the flags that a config file names and the command line does not."""
    from specjax import config
    for name, value in config.read(path).items():
        if name not in flags.FLAGS:
            raise ValueError(f"{path} sets {name}, which is no flag of this command (--help lists them)")
        if not flags.FLAGS[name].present:
            setattr(flags.FLAGS, name, value)


def _asks_for_help(args: Sequence[str]) -> bool:
    return any(arg.lstrip("-") in ("help", "helpfull", "helpshort", "helpxml", "?") for arg in args if arg.startswith("-"))
