"""Scripted models that call tools or think: what they say, and the templates that go with it."""

from collections.abc import Mapping
from typing import Any

# A template of the kind that most models with tools have: definitions in the system turn, calls
# and results in tags. Pieces of what such a model says are cut where a parser might stumble.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions, inside <tool_call> tags:
{%- for tool in tools %}{{ "\\n" }}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == "tool" %}<tool_response>{{ message.content }}</tool_response>
{%- else %}{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}{{ "\\n" }}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

THINKING_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split("</think>")[-1] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

# Opens the thinking itself, so that an answer has the closing tag only.
OPEN_THINKING_TEMPLATE = THINKING_TEMPLATE.replace(
    "{% endif %}{% endif %}", "{% else %}<think>\n{% endif %}{% endif %}"
)

# For a real model whose own template knows no tools, in Ollama's language of templates.
GO_TOOL_TEMPLATE = """\
{{- if or .System .Tools }}<|im_start|>system
{{ .System }}
{{- if .Tools }}
You may call these functions, inside <tool_call> tags:
{{- range .Tools }}
{{ json . }}{{ end }}{{ end }}<|im_end|>
{{ end }}
{{- range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}
{{ .Content }}
{{- range .ToolCalls }}
<tool_call>
{"name": "{{ .Function.Name }}", "arguments": {{ json .Function.Arguments }}}
</tool_call>{{ end }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""

# Calls `weather` for Oslo, after a sentence.
CALLER: Mapping[str, Any] = {
    "chat_template": TOOL_TEMPLATE,
    "pieces": [
        *("Let me ", "look.\n", "<tool", '_call>\n{"name": "wea', 'ther", "argum'),
        *('ents": {"city": "Os', 'lo"}}\n</tool_', "call>"),
    ],
}
# The same without a word beside the call, which is cut into single characters.
TERSE_CALLER: Mapping[str, Any] = {
    "chat_template": TOOL_TEMPLATE,
    "pieces": list('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
}
# Thinks `It is in France.`, then answers `Paris.`
THINKER: Mapping[str, Any] = {
    "chat_template": THINKING_TEMPLATE,
    "pieces": ["<th", "ink>\n", "It is ", "in France.", "\n</thi", "nk>\n\n", "Par", "is."],
}
