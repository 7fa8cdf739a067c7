// OpenAI's JavaScript client on Node. Prints what worked.

import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.OLLAMA_HOST}/v1`, apiKey: "unused", maxRetries: 0 });
const model = process.env.MODEL;
const question = "Name the capital of France.";
const messages = [{ role: "user", content: question }];

const works = (feature) => console.log(JSON.stringify({ feature, outcome: "yes" }));

const chat = await client.chat.completions.create({ model, messages, temperature: 0, max_completion_tokens: 16 });
assert(chat.choices[0].message.content.includes("Paris"));
works("chat");
let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true })) {
  text += chunk.choices[0]?.delta.content ?? "";
}
assert(text.includes("Paris"));
works("chat, streamed");

const asked = { model, input: question, temperature: 0, max_output_tokens: 32 };
const whole = await client.responses.create(asked);
assert(whole.output_text.includes("Paris"));
assert.equal(whole.status, "completed");
assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);
works("responses");
text = "";
for await (const event of await client.responses.create({ ...asked, stream: true })) {
  if (event.type === "response.output_text.delta") text += event.delta;
}
assert.equal(text, whole.output_text);
const final = await client.responses.stream(asked).finalResponse();
assert.equal(final.output[0].content[0].text, whole.output_text);
works("responses, streamed");

const parameters = { type: "object", required: ["city"], properties: { city: { type: "string" } }, additionalProperties: false };
const tools = [{ type: "function", name: "weather", description: "Tells the weather", parameters, strict: true }];
const caller = { model: process.env.CALLER, tools };
const called = await client.responses.create({ ...caller, input: question });
const call = called.output.find((item) => item.type === "function_call");
assert.deepEqual([call.name, JSON.parse(call.arguments)], ["weather", { city: "Oslo" }]);
const result = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
const input = [{ role: "user", content: question }, ...called.output, result];
const again = await client.responses.create({ ...caller, input });
assert(again.usage.input_tokens > called.usage.input_tokens);
works("responses with tools");

const schema = {
  type: "object",
  required: ["large", "country"],
  properties: { large: { type: "boolean" }, country: { type: "string", enum: ["France", "Italy"] } },
  additionalProperties: false,
};
const format = { type: "json_schema", name: "capital", strict: true, schema };
const parsed = (await client.responses.parse({ ...asked, text: { format } })).output_parsed;
assert.deepEqual(Object.keys(parsed), ["large", "country"]);
works("responses of a type");

const thought = await client.responses.create({ model: process.env.THINKER, input: question });
assert.deepEqual(thought.output.map((item) => item.type), ["reasoning", "message"]);
assert.equal(thought.output[0].summary[0].text.trim(), "It is in France.");
assert.equal(thought.output_text, "Paris.");
works("responses with thinking");

const vectors = await client.embeddings.create({ model: process.env.EMBEDDER, input: ["A cat.", "A kitten.", "The stock market."] });
const [cat, kitten, market] = vectors.data.map((one) => one.embedding);
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
assert(dot(cat, kitten) > dot(cat, market));
works("embeddings");

await assert.rejects(client.responses.create({ model: "no-such-model", input: "x" }), (error) => {
  assert(error instanceof OpenAI.NotFoundError);
  return true;
});
await assert.rejects(client.responses.create({ ...asked, previous_response_id: "resp_1" }), (error) => {
  assert.equal(error.param, "previous_response_id");
  return true;
});
works("errors with status and text");
