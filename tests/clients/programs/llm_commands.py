"""The command `llm` with its plugin for Ollama. Prints what worked."""

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL = os.environ["MODEL"]
EMBEDDER_ID = f"ollama/{os.environ['EMBEDDER']}:latest"
MODEL_ID = f"ollama/{MODEL}"
LLM = Path(sys.executable).with_name("llm")
SHORT = ("-o", "temperature", "0", "-o", "num_predict", "16")


def llm(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [LLM, *words], capture_output=True, text=True, timeout=120, input=stdin or ""
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


assert MODEL_ID in llm("models")
assert MODEL in llm("ollama", "models")
works("list models")
assert "Paris" in llm("-m", MODEL_ID, *SHORT, "--no-stream", "Name the capital of France.")
works("chat")
assert "Paris" in llm("-m", MODEL_ID, *SHORT, "Name the capital of France.")
works("chat, streamed")
assert llm("-c", "-m", MODEL_ID, *SHORT, "And of Italy?").strip()
works("chat with history")
said = llm("-m", MODEL_ID, *SHORT, "-s", "Answer briefly.", stdin="The capital of France?")
assert said.strip()
works("system text")
schema = {
    "type": "object",
    "properties": {"is_large": {"type": "boolean"}, "country": {"enum": ["France", "Italy"]}},
    "required": ["is_large", "country"],
    "additionalProperties": False,
}
asked = ("-m", MODEL_ID, "-o", "temperature", "0", "--schema", json.dumps(schema))
city = json.loads(llm(*asked, "Describe the city of Rome."))
assert list(city) == ["is_large", "country"]
assert city["country"] in ("France", "Italy")
works("structured output")
vector = json.loads(llm("embed", "-m", EMBEDDER_ID, "-c", "A cat.", "-f", "json"))
assert len(vector) == 384
works("embeddings")
