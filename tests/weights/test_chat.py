"""Chat templates: rendering as their authors expect, and the sandbox around them."""
from __future__ import annotations

import re

import pytest

from specjax.weights import CheckpointError
from specjax.weights.chat import ChatTemplate, render

HI = [{"role": "user", "content": "Hi <b>."}]


def test_special_tokens_prompt_and_further_variables():
    source = "{{ bos_token }}{{ messages[0].content }}{{ 'A' if add_generation_prompt }}{{ mode }}{{ nothing }}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert render(template, HI, mode="x") == "<s>Hi <b>.Ax"
    assert render(template, HI, add_generation_prompt=False) == "<s>Hi <b>."


def test_blocks_are_trimmed_as_the_templates_were_written_for():
    source = "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\nend"
    assert render(ChatTemplate(source), HI) == "Hi <b>.\nend"


def test_tools_are_plain_json():
    assert render(ChatTemplate("{{ messages | tojson }}"), HI) == '[{"role": "user", "content": "Hi <b>."}]'
    assert render(ChatTemplate("{{ 'é' | tojson }}"), HI) == '"é"'


def test_date_and_loop_controls():
    assert re.fullmatch(r"\d{4}", render(ChatTemplate("{{ strftime_now('%Y') }}"), HI))
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(ChatTemplate(source), HI) == "01"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.datetime }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(100000000) %}{% endfor %}",
        "{% include 'secret' %}",
    ],
)
def test_the_sandbox_keeps_the_template_in(source):
    with pytest.raises(CheckpointError, match="the chat template failed"):
        render(ChatTemplate(source), HI)
    assert HI == [{"role": "user", "content": "Hi <b>."}]


def test_faults_of_a_template_are_told():
    with pytest.raises(CheckpointError, match="roles must alternate"):
        render(ChatTemplate("{{ raise_exception('roles must alternate') }}"), HI)
    with pytest.raises(CheckpointError, match="TemplateSyntaxError"):
        render(ChatTemplate("{% if %}"), HI)
