// Reads server-sent events from a response. EventSource cannot send the header with the buyer's token; fetch can.

/** Yields `{type, id, data}` of each event, and `{type: "comment", id}` of a keep-alive; onBytes() for every piece. */
export async function* readEvents(body, onBytes = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const split = new BlockSplitter();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes();
      for (const block of split.add(value)) yield parseBlock(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Cuts text that arrives in pieces at its empty lines. A large event is put together once, not at every piece. */
export class BlockSplitter {
  #pieces = [];

  add(text) {
    const blocks = [];
    const last = this.#pieces.at(-1);
    // An empty line may be cut between two pieces.
    if (last?.endsWith("\n") && text.startsWith("\n")) {
      blocks.push(this.#take(""));
      text = text.slice(1);
    }
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      blocks.push(this.#take(text.slice(0, end)));
      text = text.slice(end + 2);
    }
    if (text) this.#pieces.push(text);
    return blocks;
  }

  #take(end) {
    const block = this.#pieces.join("") + end;
    this.#pieces = [];
    return block;
  }
}

function parseBlock(block) {
  const event = { type: "comment", id: null, data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    const [name, value] = [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
    if (name === "event") event.type = value;
    if (name === "id") event.id = value;
    if (name === "data") event.data += value;
  }
  return event;
}
