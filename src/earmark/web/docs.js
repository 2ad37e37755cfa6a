// The API reference, rendered in the browser from /openapi.json.

import { byId, el, inline } from "./dom.js";
import { Schemas } from "./openapi-schema.js";

const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];
let schemas = null;

async function open() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`/openapi.json answered ${response.status}.`);
  const api = await response.json();
  schemas = new Schemas(api);
  document.title = `${api.info.title} · API reference`;
  byId("title").textContent = `${api.info.title} API`;
  byId("version").textContent = `Version ${api.info.version} · OpenAPI ${api.openapi}`;
  byId("about").replaceChildren(...prose(api.info.summary), ...prose(api.info.description));
  const groups = group(api);
  byId("operations").replaceChildren(...groups.map(showGroup));
  byId("schemas").replaceChildren(...showSchemas(api.components?.schemas ?? {}));
  byId("index").replaceChildren(...groups.map(showIndex), schemaIndex(api));
  byId("filter").addEventListener("input", filter);
  byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

// ---- what is in the document

/** Operations under their first tag; tags in the document's order, what has none comes last. */
function group(api) {
  const groups = new Map((api.tags ?? []).map((tag) => [tag.name, { ...tag, operations: [] }]));
  for (const [path, item] of Object.entries(api.paths ?? {})) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = { ...item[method], method, path, parameters: parametersOf(item, item[method]) };
      const tag = operation.tags?.[0] ?? "Other";
      if (!groups.has(tag)) groups.set(tag, { name: tag, operations: [] });
      groups.get(tag).operations.push({ ...operation, security: operation.security ?? api.security });
    }
  }
  return [...groups.values()].filter(({ operations }) => operations.length);
}

/** A path's own parameters, overridden by the operation's. */
function parametersOf(item, operation) {
  const all = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map((one) => schemas.resolve(one));
  return [...new Map(all.map((one) => [`${one.in} ${one.name}`, one])).values()];
}

const anchor = ({ operationId, method, path }) => `op-${operationId ?? `${method}-${path}`.replace(/[^\w]+/g, "-")}`;

// ---- the list on the side

function showIndex({ name, operations }) {
  const entry = (operation) => {
    const label = [badge(operation.method), el("span", {}, titleOf(operation))];
    return el("li", { "data-find": words(operation) }, el("a", { href: `#${anchor(operation)}` }, label));
  };
  return el("section", {}, el("h2", {}, name), el("ul", {}, operations.map(entry)));
}

function schemaIndex(api) {
  const names = Object.keys(api.components?.schemas ?? {});
  if (!names.length) return "";
  const entry = (name) => el("li", { "data-find": name.toLowerCase() }, el("a", { href: `#schema-${name}` }, name));
  return el("section", {}, el("h2", {}, "Schemas"), el("ul", {}, names.map(entry)));
}

const titleOf = ({ summary, operationId, path }) => summary ?? operationId ?? path;

const words = ({ method, path, summary, operationId }) => [method, path, summary, operationId].join(" ").toLowerCase();

function filter() {
  const wanted = byId("filter").value.trim().toLowerCase();
  for (const node of document.querySelectorAll("[data-find]")) node.hidden = !node.dataset.find.includes(wanted);
  for (const section of document.querySelectorAll("#index section, #operations > section, #schemas"))
    section.hidden = !section.querySelector("[data-find]:not([hidden])");
}

// ---- one operation

function showGroup({ name, description, operations }) {
  const heading = el("h2", { class: "group" }, name);
  return el("section", { "aria-label": name }, heading, prose(description), operations.map(showOperation));
}

function showOperation(operation) {
  return el(
    "article",
    {
      class: "card operation",
      id: anchor(operation),
      "data-operation": `${operation.method.toUpperCase()} ${operation.path}`,
      "data-find": words(operation),
    },
    el("h3", {}, el("a", { href: `#${anchor(operation)}` }, titleOf(operation))),
    el("p", { class: "route" }, badge(operation.method), el("code", {}, operation.path)),
    operation.deprecated && el("p", { class: "required" }, "Deprecated"),
    prose(operation.description),
    showSecurity(operation),
    showParameters(operation.parameters),
    showBody(operation.requestBody),
    showResponses(operation.responses),
  );
}

const badge = (method) => el("span", { class: "badge", "data-method": method }, method.toUpperCase());

function showSecurity({ security, "x-scopes": needed = [] }) {
  if (!security) return null;
  const known = schemas.document.components?.securitySchemes ?? {};
  const oneWay = (way) =>
    Object.entries(way).map(([name, scopes]) => [known[name]?.description ?? name, ...scopes].join(" "));
  const ways = security.map((way) => oneWay(way).join(" and ") || "none");
  const scopes = needed.length ? ` (with the scope ${needed.join(" or ")})` : "";
  return el("p", { class: "quiet small" }, `Authentication: ${ways.join(", or ") || "none"}${scopes}`);
}

function showParameters(parameters) {
  if (!parameters.length) return null;
  const rows = parameters.map((one) => ({
    name: one.name,
    isRequired: one.required,
    where: one.in,
    node: one.schema ?? {},
    description: one.description,
  }));
  return [el("h4", {}, "Parameters"), memberTable(rows)];
}

function showBody(reference) {
  if (!reference) return null;
  const body = schemas.resolve(reference);
  return [
    el("h4", {}, "Request body", !body.required && el("span", { class: "quiet" }, " optional")),
    prose(body.description),
    Object.entries(body.content ?? {}).map(([type, media]) => showMedia(type, media, { inFull: true })),
  ];
}

function showResponses(responses = {}) {
  const entry = ([status, reference]) => {
    const response = schemas.resolve(reference);
    const content = Object.entries(response.content ?? {});
    return el(
      "details",
      { class: "response", "data-status": status, open: status.startsWith("2") && content.length > 0 },
      el("summary", {}, el("code", { "data-kind": status[0] }, status), " ", inline(response.description ?? "")),
      showHeaders(response.headers),
      content.map(([type, media]) => showMedia(type, media)),
    );
  };
  return [el("h4", {}, "Responses"), Object.entries(responses).map(entry)];
}

function showHeaders(headers = {}) {
  const rows = Object.entries(headers).map(([name, reference]) => {
    const header = schemas.resolve(reference);
    return { name, where: "header", node: header.schema ?? {}, description: header.description };
  });
  return rows.length ? memberTable(rows) : null;
}

// ---- bodies and schemas

/** In full: with the members of its schema, even if that has an entry of its own. */
function showMedia(type, media, { inFull = false } = {}) {
  const schema = media.schema ?? {};
  return el(
    "div",
    { class: "media" },
    el("p", { class: "quiet small" }, el("code", {}, type), " ", typeWords(schema)),
    inFull || !schemas.nameOf(schema) ? showMembers(schema) : null,
    examplesOf(media).map(([name, value]) => el("figure", {}, name && el("figcaption", {}, name), code(value))),
  );
}

function examplesOf({ example, examples, schema }) {
  if (example !== undefined) return [["Example", example]];
  const named = Object.entries(examples ?? {}).map(([name, reference]) => {
    const { summary, value } = schemas.resolve(reference);
    return [summary ?? name, value];
  });
  if (named.length || !schema) return named;
  const made = schemas.example(schema);
  return made === null ? [] : [["Example", made]];
}

function code(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return el("pre", { tabindex: 0 }, el("code", {}, text));
}

function showSchemas(all) {
  const entries = Object.entries(all);
  if (!entries.length) return [];
  return [el("h2", { class: "group" }, "Schemas"), ...entries.map(([name, node]) => showSchema(name, node))];
}

function showSchema(name, node) {
  const members = showMembers(node);
  return el(
    "article",
    { class: "card operation", id: `schema-${name}`, "data-find": name.toLowerCase() },
    el("h3", {}, el("a", { href: `#schema-${name}` }, name)),
    prose(node.description),
    members ?? el("p", {}, typeWords(node)),
  );
}

function showMembers(node) {
  const target = schemas.resolve(node.type === "array" ? node.items : node);
  const rows = schemas.members(target);
  const described = rows.map((row) => ({ ...row, description: describe(row.node) }));
  return rows.length ? memberTable(described) : null;
}

// A named schema describes itself in its own entry.
const describe = (node) => node.description ?? (schemas.nameOf(node) ? "" : schemas.meaning(node).description);

function memberTable(rows) {
  const line = ({ name, isRequired, where, node, description }) =>
    el(
      "li",
      {},
      el(
        "p",
        { class: "member" },
        el("code", {}, name),
        el("span", { class: "type" }, typeWords(node)),
        where && el("span", { class: "quiet small" }, where),
        isRequired && el("span", { class: "required" }, "required"),
      ),
      el("div", { class: "quiet small" }, prose(description), limitWords(node)),
    );
  return el("ul", { class: "members" }, rows.map(line));
}

function limitWords(node) {
  const limits = schemas.limits(node);
  return limits.length ? el("p", {}, limits.join(", ")) : null;
}

function typeWords(node) {
  const word = (piece) => (piece.name ? el("a", { href: `#schema-${piece.name}` }, piece.name) : piece);
  return schemas.pieces(node).map(word);
}

/** The little of Markdown that a description uses: paragraphs, lists, `code` and **weight**. */
function prose(text) {
  if (!text) return [];
  return text.trim().split(/\n\s*\n/).map((block) => {
    const lines = block.split("\n");
    if (!lines.every((line) => /^\s*[-*] /.test(line))) return el("p", {}, inline(lines.join(" ")));
    return el("ul", { class: "bullets" }, lines.map((line) => el("li", {}, inline(line.replace(/^\s*[-*] /, "")))));
  });
}

open().catch((error) => {
  byId("title").textContent = "The reference could not be loaded";
  byId("about").textContent = error.message;
});
