"""The bodies of OpenAI's completions and chat completions: what may be asked, and how an answer looks.

Unknown fields are refused, not ignored: an option that silently does nothing is the worst answer. What OpenAI's interface lacks (top_k, min_p,
repetition_penalty, the length of drafts, ...) may be given under the names of `specjax.settings.Settings`.
"""
from __future__ import annotations

import json
import random
from typing import Annotated, Any, Literal

import pydantic

from specjax.grammar import Automaton
from specjax.settings import Settings


class Refused(Exception):
    """A request that is answered with an error: `status` of HTTP, a sentence, the field at fault."""

    def __init__(self, status: int, message: str, field: str | None = None):
        super().__init__(message)
        self.status, self.field = status, field

    def body(self) -> dict[str, Any]:
        """The JSON error object."""
        kind = "server_error" if self.status >= 500 else "rate_limit_error" if self.status == 429 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.status}}


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """Whether the last event of a stream tells the usage."""

    include_usage: bool = False


class JsonSchema(_Strict):
    """A JSON schema under OpenAI's wrapping; `name` and `description` are for people, `strict` is always kept."""

    name: str = ""
    description: str | None = None
    schema_: Annotated[dict[str, Any], pydantic.Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(_Strict):
    """Free text, or a JSON value of a schema. (Any JSON at all is no regular language: give a schema.)"""

    type: Literal["text", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(_Strict):
    """What both kinds of request share."""

    model: str | None = None
    temperature: Annotated[float, pydantic.Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0)] = 0
    min_p: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    typical_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, pydantic.Field(gt=0)] = 1.0
    presence_penalty: Annotated[float, pydantic.Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, pydantic.Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[str, float] | None = None
    n: Annotated[int, pydantic.Field(ge=1, le=16)] = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    min_tokens: Annotated[int, pydantic.Field(ge=0)] = 0
    ignore_eos: bool = False
    draft: Annotated[int, pydantic.Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None

    def grammar(self) -> tuple[str, str] | None:
        """("regex" or "json_schema", its text), if the answer must be a word of a grammar."""
        form = self.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            raise Refused(400, f"response_format: type {form.type!r} and json_schema contradict each other", "response_format")
        schema = None if form is None or form.json_schema is None else json.dumps(form.json_schema.schema_)
        if schema is not None and self.regex is not None:
            raise Refused(400, "regex and response_format exclude each other", "regex")
        return ("json_schema", schema) if schema is not None else ("regex", self.regex) if self.regex is not None else None

    def settings(self, new_tokens: int, eos: tuple[int, ...], logprobs: int | None, grammar: Automaton | None = None) -> list[Settings]:
        """One Settings for each of the n samples; without a seed the text is not repeatable."""
        stops = [] if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop
        seed = random.getrandbits(32) if self.seed is None else self.seed & 0xFFFFFFFF
        try:
            bias = tuple((int(k), v) for k, v in (self.logit_bias or {}).items())
        except ValueError:
            raise Refused(400, "logit_bias: the keys must be token ids", "logit_bias") from None
        return [Settings(max_new_tokens=new_tokens, min_new_tokens=self.min_tokens, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p,
                         min_p=self.min_p, typical_p=self.typical_p, repetition_penalty=self.repetition_penalty,
                         presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty, logit_bias=bias,
                         stop_ids=(*(() if self.ignore_eos else eos), *self.stop_token_ids), stop=tuple(stops), seed=seed, request_id=i,
                         draft=self.draft, logprobs=logprobs, grammar=grammar) for i in range(self.n)]


class Completion(Sampling):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, pydantic.Field(ge=1)] = 16
    logprobs: Annotated[int, pydantic.Field(ge=0, le=20)] | None = None
    echo: Literal[False] = False


class Message(_Strict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = None


class ChatCompletion(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], pydantic.Field(min_length=1)]
    max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, pydantic.Field(ge=0, le=20)] = 0


def parse(kind: type[Completion] | type[ChatCompletion], body: bytes) -> Any:
    """A request body as an object.

    Raises:
      Refused: not UTF-8, not JSON, a wrong type, a value out of range, or an unknown field; the field is named.
    """
    try:
        return kind.model_validate_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8: {error}") from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(x) for x in first["loc"]) or None
        raise Refused(400, f"{field or 'the body'}: {first['msg']}", field) from None
