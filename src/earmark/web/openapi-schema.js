// Reads JSON Schema as OpenAPI 3.1 writes it: follows references, names types in a few words, makes up an example.

export class Schemas {
  constructor(document) {
    this.document = document;
  }

  /** What a `$ref` points to, however many references long the way is; anything else is itself. */
  resolve(node) {
    for (let steps = 0; node?.$ref && steps < 20; steps += 1) node = this.#at(node.$ref);
    return node ?? {};
  }

  /** The name of a referenced schema, or null. */
  nameOf(node) {
    const name = node?.$ref?.match(/^#\/components\/schemas\/(.+)$/)?.[1];
    return name ? unescape(name) : null;
  }

  /** A type in a few words, as pieces: text, or `{name}` for a schema that has its own entry. */
  pieces(node) {
    if (node === true || node === undefined) return ["anything"];
    const name = this.nameOf(node);
    if (name) return [{ name }];
    const choices = node.oneOf ?? node.anyOf;
    if (choices) return joined(choices.map((choice) => this.pieces(choice)), " or ");
    if (node.allOf) return joined(node.allOf.map((part) => this.pieces(part)), " and ");
    if ("const" in node) return [JSON.stringify(node.const)];
    if (node.enum) return [node.enum.map((value) => JSON.stringify(value)).join(" or ")];
    return this.#ofType(node);
  }

  /** The members of an object, those of its allOf parts included: `[{name, node, isRequired}]`. */
  members(node) {
    const whole = this.resolve(node);
    const own = Object.entries(whole.properties ?? {});
    const required = new Set(whole.required);
    const inherited = (whole.allOf ?? []).flatMap((part) => this.members(part));
    return [...inherited, ...own.map(([name, value]) => ({ name, node: value, isRequired: required.has(name) }))];
  }

  /** Limits and defaults in words: "at least 1", "default 120". */
  limits(node) {
    const target = this.meaning(node);
    const known = Object.entries(LIMITS).filter(([word]) => (target[word] ?? null) !== null);
    const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));
    return known.map(([word, words]) => `${words} ${said(target[word])}`);
  }

  /** The node itself, with what its only choice says when it is "that, or null". */
  meaning(node) {
    const target = this.resolve(node);
    const all = (target.anyOf ?? target.oneOf ?? []).map((one) => this.resolve(one));
    const choices = all.filter((one) => one.type !== "null");
    return choices.length === 1 ? { ...choices[0], ...target } : target;
  }

  /** The example the document gives, else one made up from the types; a schema inside itself is left out. */
  example(node, outer = []) {
    if (outer.includes(node?.$ref)) return null;
    const inside = node?.$ref ? [...outer, node.$ref] : outer;
    const target = this.resolve(node);
    const given = target.example ?? target.examples?.[0] ?? target.default ?? target.const ?? target.enum?.[0];
    if (given !== undefined) return given;
    const choice = (target.oneOf ?? target.anyOf)?.find((one) => this.resolve(one).type !== "null");
    if (choice) return this.example(choice, inside);
    const type = [target.type].flat().find((one) => one !== "null");
    if (type === "object" || target.properties || target.allOf) return this.#exampleObject(target, inside);
    if (type === "array") return target.items ? [this.example(target.items, inside)] : [];
    return scalar(type, target);
  }

  #exampleObject(target, inside) {
    const members = this.members(target).map(({ name, node }) => [name, this.example(node, inside)]);
    const open = target.additionalProperties;
    if (!members.length && open && typeof open === "object") members.push(["…", this.example(open, inside)]);
    return Object.fromEntries(members);
  }

  #ofType(node) {
    const types = [node.type ?? (node.properties ? "object" : null)].flat().filter(Boolean);
    if (!types.length) return ["anything"];
    return joined(types.map((type) => this.#oneType(type, node)), " or ");
  }

  #oneType(type, node) {
    if (type === "array" && node.items) return ["array of ", ...this.pieces(node.items)];
    if (type === "object" && typeof node.additionalProperties === "object")
      return ["object of ", ...this.pieces(node.additionalProperties)];
    return [node.format && type !== "null" ? `${type} (${node.format})` : type];
  }

  #at(reference) {
    const steps = reference.startsWith("#/") ? reference.slice(2).split("/").map(unescape) : [];
    return steps.reduce((node, step) => node?.[step], this.document);
  }
}

const LIMITS = {
  minimum: "at least",
  exclusiveMinimum: "more than",
  maximum: "at most",
  exclusiveMaximum: "less than",
  minLength: "length from",
  maxLength: "length up to",
  minItems: "items from",
  maxItems: "items up to",
  pattern: "matches",
  default: "default",
};

const unescape = (step) => decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");

const joined = (groups, word) => groups.flatMap((group, index) => (index ? [word, ...group] : group));

const STRINGS = {
  "date-time": "2030-06-01T19:30:00Z",
  uri: "https://example.org/",
  uuid: "01890000-0000-7000-8000-000000000000",
};

function scalar(type, { format, minimum }) {
  if (type === "string") return STRINGS[format] ?? "string";
  if (type === "integer" || type === "number") return minimum ?? 0;
  return type === "boolean" ? true : null;
}
