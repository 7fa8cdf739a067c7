// Anthropic's own client for JavaScript on Node. Prints what worked.

import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.OLLAMA_HOST, apiKey: "unused", maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "Name the capital of France." }];
const short = { model, messages, max_tokens: 16, temperature: 0 };

const works = (feature, outcome = "yes") => console.log(JSON.stringify({ feature, outcome }));
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
const inputOf = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;

const whole = await client.messages.create(short);
assert(textOf(whole).includes("Paris"));
assert.equal(whole.stop_reason, "end_turn");
works("chat");

let text = "";
for await (const event of await client.messages.create({ ...short, stream: true })) {
  if (event.type === "content_block_delta" && event.delta.type === "text_delta") text += event.delta.text;
}
assert.equal(text, textOf(whole));
const streamed = await client.messages.stream(short).finalMessage();
assert.equal(textOf(streamed), text);
assert.equal(inputOf(streamed), inputOf(whole));
works("chat, streamed");

const counted = await client.messages.countTokens({ model, messages });
assert.equal(counted.input_tokens, inputOf(whole));
works("tokens of a prompt");

const brief = await client.messages.create({ ...short, system: "Be brief." });
assert.notEqual(inputOf(brief), inputOf(whole));
works("system text");

const stopped = await client.messages.create({ ...short, stop_sequences: ["Paris"] });
assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ["stop_sequence", "Paris"]);
assert.equal((await client.messages.create({ ...short, max_tokens: 2 })).stop_reason, "max_tokens");
works("limits and stop strings");

const input_schema = { type: "object", required: ["city"], properties: { city: { type: "string", maxLength: 20 } } };
const tools = [{ name: "weather", description: "Tells the weather", input_schema }];
const caller = { model: process.env.CALLER, messages, tools, max_tokens: 99 };
const called = await client.messages.create(caller);
const [said, call] = called.content;
assert.equal(said.text, "Let me look.");
assert.deepEqual([call.name, call.input, called.stop_reason], ["weather", { city: "Oslo" }, "tool_use"]);
const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
const turns = [...messages, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
assert.equal((await client.messages.create({ ...caller, messages: turns })).stop_reason, "tool_use");
works("tools");
works("chat with history");

const gathered = await client.messages.stream(caller).finalMessage();
assert.deepEqual(gathered.content.map((block) => block.type), ["text", "tool_use"]);
assert.deepEqual(gathered.content[1].input, { city: "Oslo" });
works("tools, streamed");

const forced = await client.messages.create({ ...short, max_tokens: 99, tools, tool_choice: { type: "any" } });
assert(forced.content.every((block) => block.type === "tool_use"));
works("forced tool call");

const country = { type: "string", enum: ["France", "Italy"] };
const schema = { type: "object", required: ["large", "country"], properties: { large: { type: "boolean" }, country }, additionalProperties: false };
const formed = await client.messages.create({ ...short, max_tokens: 99, output_config: { format: { type: "json_schema", schema } } });
assert.deepEqual(Object.keys(JSON.parse(textOf(formed))), ["large", "country"]);
works("structured output");

const thinking = { type: "enabled", budget_tokens: 1024 };
const thoughtful = { model: process.env.THINKER, messages, thinking, max_tokens: 2048 };
for (const message of [await client.messages.create(thoughtful), await client.messages.stream(thoughtful).finalMessage()]) {
  const [thought, answer] = message.content;
  assert.deepEqual([thought.thinking, answer.text], ["It is in France.", "Paris."]);
}
works("thinking");

await assert.rejects(client.messages.create({ ...short, model: "no-such-model" }), (error) => {
  assert(error instanceof Anthropic.NotFoundError);
  assert.match(error.message, /model 'no-such-model' not found/);
  assert(error.requestID);
  return true;
});
works("errors with status and text");

const names = [];
for await (const one of client.models.list()) names.push(one.id);
assert(names.includes(model));
works("list models");
assert.equal((await client.models.retrieve(model)).id, model);
works("show a model");

const story = await client.messages.create({ ...short, max_tokens: 1000, messages: [{ role: "user", content: "Tell me a long story." }], stream: true });
for await (const event of story) {
  story.controller.abort();
}
works("abort of a stream");
