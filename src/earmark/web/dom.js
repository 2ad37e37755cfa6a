// Small builders for elements: attributes as given, functions as listeners, children as nodes or text, never markup.

/** An HTML element. */
export const el = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);

/** The element with this id; the page's own markup promises that it is there. */
export const byId = (id) => document.getElementById(id);

/** Text with `code` and **weight** in it, as nodes. */
export const inline = (text) =>
  text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((piece) => {
    if (/^`.+`$/.test(piece)) return el("code", {}, piece.slice(1, -1));
    return /^\*\*.+\*\*$/.test(piece) ? el("strong", {}, piece.slice(2, -2)) : piece;
  });

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (isThere(value)) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(isThere));
  return node;
}

const isThere = (value) => value !== null && value !== undefined && value !== false;
