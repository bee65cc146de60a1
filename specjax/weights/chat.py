"""Chat templates: the jinja2 programs that turn a list of messages into the text that a model was trained on.

A template comes with the weights, so it is foreign code: it runs in jinja2's immutable sandbox, which gives it no way
to the interpreter, to files, or to changing what it is given.
"""
from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from specjax.weights.checkpoint import CheckpointError


class ChatTemplate(NamedTuple):
    """A chat template with the special tokens it may print.

    Attributes:
      source: the jinja2 text.
      special: variable name -> token text, such as ``{"bos_token": "<s>"}``.
    """

    source: str
    special: Mapping[str, str] = {}


def render(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
) -> str:
    """Text of a conversation, as the model was trained to see it.

    The text already holds every special token, the begin-of-text token included where the template wants one;
    `specjax.weights.tokenizer.encode` does not double it.

    Args:
      template: from a `Checkpoint`.
      messages: one mapping a message, with "role" and "content".
      add_generation_prompt: end with the opening of the assistant's turn.
      **variables: further variables that some templates read, such as ``enable_thinking`` or ``tools``.

    Returns:
      The text.

    Raises:
      CheckpointError: the template has a syntax error, refuses these messages, or tries something that the sandbox
        forbids.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    ...                         "{% if add_generation_prompt %}<assistant>{% endif %}")
    >>> render(template, [{"role": "user", "content": "Hi."}])
    '<user>Hi.<assistant>'
    """
    try:
        given = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        return _environment().from_string(template.source).render({**template.special, **given, **variables})
    except Exception as error:  # a template is a foreign program: whatever it raises is a fault of the checkpoint
        raise CheckpointError(f"the chat template failed: {type(error).__name__}: {error}") from error


def _environment() -> Any:
    import jinja2.ext
    import jinja2.sandbox

    # Block trimming and loop controls as in Hugging Face's renderer, which the templates are written against.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which would corrupt tool descriptions.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
