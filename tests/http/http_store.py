"""Requests to the application over a real store."""

import asyncio
import json

from http_fakes import Exchange, ScriptedService, app_of


def ask(root, method, path, body=b"", **more):
    """(status, body) of one request; the body is decoded when it is JSON."""
    service = more.pop("service", None) or ScriptedService()
    exchange = Exchange(app_of(service, root), method, path, body, **more)
    status, headers, data = asyncio.run(exchange.run())
    is_json = headers.get("content-type", "").startswith("application/json")
    return status, json.loads(data) if is_json and data else data


def steps(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]
