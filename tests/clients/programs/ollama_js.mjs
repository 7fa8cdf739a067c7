// The official JavaScript client of Ollama on Node. Prints what worked.

import assert from "node:assert";
import { Ollama } from "ollama";

const ollama = new Ollama({ host: process.env.OLLAMA_HOST });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "Name the capital of France." }];
const options = { temperature: 0, num_predict: 16 };

const works = (feature) => console.log(JSON.stringify({ feature, outcome: "yes" }));

const whole = await ollama.chat({ model, messages, options });
assert(whole.message.content.includes("Paris"));
assert(whole.eval_count > 0);
works("chat");

let text = "";
for await (const part of await ollama.chat({ model, messages, options, stream: true })) {
  text += part.message.content;
}
assert.equal(text, whole.message.content);
works("chat, streamed");

const completion = await ollama.generate({ model, prompt: "Name the capital of France.", options });
assert(completion.response.includes("Paris"));
works("completion");

text = "";
for await (const part of await ollama.generate({ model, prompt: "Name the capital of France.", options, stream: true })) {
  text += part.response;
}
assert(text.includes("Paris"));
works("completion, streamed");

const stream = await ollama.generate({ model, prompt: "Tell me a long story.", stream: true });
await assert.rejects(async () => {
  for await (const part of stream) {
    stream.abort();
  }
}, { name: "AbortError" });
works("abort of a stream");

const names = (await ollama.list()).models.map((one) => one.name);
assert(names.includes(model));
works("list models");
assert((await ollama.ps()).models.some((one) => one.name === model));
works("models in memory");
const shown = await ollama.show({ model });
assert.equal(shown.model_info["general.architecture"], "llama");
works("show a model");

await ollama.copy({ source: model, destination: "from-js" });
await ollama.delete({ model: "from-js" });
assert(!(await ollama.list()).models.some((one) => one.name.startsWith("from-js")));
works("copy and delete");
let last;
for await (const part of await ollama.create({ model: "made-in-js", from: model, system: "Be brief.", stream: true })) {
  last = part.status;
}
assert.equal(last, "success");
await ollama.delete({ model: "made-in-js" });
works("create a model");

await assert.rejects(ollama.chat({ model: "no-such-model", messages }), (error) => {
  assert.equal(error.status_code, 404);
  assert.match(error.message, /not found/);
  return true;
});
works("errors with status and text");

const parameters = { type: "object", required: ["city"], properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", description: "Tells the weather", parameters } }];
const caller = { model: process.env.CALLER, tools };
const called = (await ollama.chat({ ...caller, messages })).message;
assert.equal(called.content.trim(), "Let me look.");
assert.deepEqual(called.tool_calls.map((call) => [call.function.name, call.function.arguments]), [["weather", { city: "Oslo" }]]);
const result = { role: "tool", content: "sunny", tool_name: "weather" };
assert((await ollama.chat({ ...caller, messages: [...messages, called, result] })).message.tool_calls.length === 1);
works("tools");

const calls = [];
text = "";
for await (const part of await ollama.chat({ ...caller, messages, stream: true })) {
  text += part.message.content;
  calls.push(...(part.message.tool_calls ?? []));
}
assert.equal(text, called.content);
assert.deepEqual(calls.map((call) => call.function), called.tool_calls.map((call) => call.function));
works("tools, streamed");

const country = { type: "string", enum: ["France", "Italy"] };
const format = { type: "object", required: ["large", "country"], properties: { large: { type: "boolean" }, country }, additionalProperties: false };
const said = JSON.parse((await ollama.chat({ model, messages, format, options: { temperature: 0 } })).message.content);
assert.deepEqual(Object.keys(said), ["large", "country"]);
assert(country.enum.includes(said.country));
works("structured output");

const thought = (await ollama.chat({ model: process.env.THINKER, messages, think: true })).message;
assert.equal(thought.thinking.trim(), "It is in France.");
assert.equal(thought.content, "Paris.");
works("thinking");

const { embeddings } = await ollama.embed({ model: process.env.EMBEDDER, input: ["A cat.", "A kitten.", "The stock market."] });
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
assert(dot(embeddings[0], embeddings[1]) > dot(embeddings[0], embeddings[2]));
works("embeddings");
