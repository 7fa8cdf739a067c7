"""The events of a streamed response: parsed, and held to what clients build from them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# How an item that grows is told: item type → (where its parts are, part, text, name of the index).
_GROWING = {
    "message": ("content", "content_part", "output_text", "content_index"),
    "reasoning": (
        "summary",
        "reasoning_summary_part",
        "reasoning_summary_text",
        "summary_index",
    ),
}
_ENDS = ("response.completed", "response.incomplete")


@dataclass(frozen=True)
class Streamed:
    """The events of one stream, and the response that they end with."""

    events: list[dict[str, Any]]
    response: dict[str, Any]

    @property
    def kinds(self) -> list[str]:
        """Their types, without the common beginning."""
        return [event["type"].removeprefix("response.") for event in self.events]


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The events, each with a name that is its type, numbered without gaps."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for number, block in enumerate(blocks):
        name, text = block.split("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def checked(data: bytes) -> Streamed:
    """A stream that has ended well: what its events add up to is the response at its end."""
    events = parsed(data)
    created, begun, *middle, ended = events
    assert [created["type"], begun["type"]] == ["response.created", "response.in_progress"]
    assert created["response"] == begun["response"]
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    assert ended["type"] in _ENDS
    response = ended["response"]
    assert ended["type"] == f"response.{response['status']}"
    changing = ("status", "output", "usage", "completed_at", "incomplete_details", "truncated")
    for name, value in created["response"].items():
        assert name in changing or response[name] == value, name
    rest = iter(middle)
    items = [_item(event, i, rest) for i, event in enumerate(rest)]
    assert response["output"] == items
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    return Streamed(events, response)


def _item(added: dict[str, Any], index: int, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The item that these events tell of; all of them are taken."""
    assert added["type"] == "response.output_item.added"
    first = added["item"]
    assert (added["output_index"], first["status"]) == (index, "in_progress")
    built = _call(first, index, events)
    if first["type"] in _GROWING:
        built = _grown(first, index, events)
    done = next(events)
    assert done["type"] == "response.output_item.done"
    assert done["output_index"] == index
    item: dict[str, Any] = done["item"]
    assert built | {"status": item["status"]} == _without_encrypted(item)
    return item


def _call(first: dict[str, Any], index: int, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    if first["type"] != "function_call":
        return {}
    assert first["arguments"] == ""
    place = {"item_id": first["id"], "output_index": index}
    delta, done = next(events), next(events)
    name = "response.function_call_arguments"
    assert (delta["type"], done["type"]) == (f"{name}.delta", f"{name}.done")
    assert place.items() <= delta.items()
    assert place.items() <= done.items()
    assert delta["delta"] == done["arguments"]
    return first | {"arguments": done["arguments"]}


def _grown(first: dict[str, Any], index: int, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    field, part_name, text_name, index_name = _GROWING[first["type"]]
    assert first[field] == []
    place = {"item_id": first["id"], "output_index": index, index_name: 0}
    added = next(events)
    assert added["type"] == f"response.{part_name}.added"
    part, text, logprobs = added["part"], "", []
    assert part["text"] == ""
    for event in events:
        assert place.items() <= event.items()
        if event["type"] != f"response.{text_name}.delta":
            break
        assert event["delta"]
        text += event["delta"]
        logprobs += event.get("logprobs", [])
    assert event["type"] == f"response.{text_name}.done"
    assert (event["text"], event.get("logprobs", [])) == (text, logprobs)
    done = next(events)
    assert done["type"] == f"response.{part_name}.done"
    assert place.items() <= done.items()
    grown = part | {"text": text} | ({"logprobs": logprobs} if "logprobs" in part else {})
    assert done["part"] == grown
    return first | {field: [grown]}


def _without_encrypted(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "encrypted_content"}
