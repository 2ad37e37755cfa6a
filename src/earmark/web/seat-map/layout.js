// The parts of the element: its shadow root's nodes, without what they do.

import { el } from "../dom.js";

/** All nodes by name; `views` and `zoom` have the buttons. */
export function buildLayout(texts, { zoomBy, zoomAll, goTo, show, dismiss, isMac }) {
  const canvas = (name) => el("canvas", { class: name, "aria-hidden": "true" });
  const button = (label, sign, click) =>
    el("button", { type: "button", "aria-label": label, title: label, click }, sign);
  const view = (name, words) => el("button", { type: "button", "data-view": name, click: () => show(name) }, words);
  const nodes = {
    link: el("p", { class: "link", "data-link": "connecting", role: "status" }, texts.connecting),
    sections: el("select", { "aria-label": texts.goToSection, change: () => goTo(Number(nodes.sections.value)) }),
    views: [view("map", texts.mapView), view("list", texts.listView)],
    seatsCanvas: canvas("seats"),
    marksCanvas: canvas("marks"),
    tip: el("div", { class: "tip", "aria-hidden": "true", hidden: true }),
    hint: el("div", { class: "hint", "aria-hidden": "true", hidden: true }, texts.zoomWithKey(isMac)),
    state: el("p", { class: "state", role: "status" }, texts.loading),
    noticeText: el("span", {}),
    offers: el("span", { class: "offers" }),
    aloud: el("div", { class: "aloud", role: "status" }),
    signs: el("ul", { class: "signs", "aria-label": texts.signs }),
  };
  nodes.notice = el(
    "div",
    { class: "notice", hidden: true },
    nodes.noticeText,
    nodes.offers,
    el("button", { type: "button", class: "dismiss", "aria-label": texts.dismiss, click: dismiss }, "×"),
  );
  nodes.zoom = el(
    "div",
    { class: "zoom" },
    button(texts.zoomIn, "+", () => zoomBy(1.6)),
    button(texts.zoomOut, "−", () => zoomBy(1 / 1.6)),
    button(texts.zoomAll, "⤢", zoomAll),
  );
  return nodes;
}

/** Puts the nodes, and the parts that have classes of their own, in their order. */
export function assemble(nodes, texts, { grid, list, legend, best, pools }) {
  nodes.map = el(
    "div",
    { class: "map", role: "group", "aria-label": texts.mapLabel },
    nodes.seatsCanvas,
    nodes.marksCanvas,
    grid.node,
    nodes.tip,
    nodes.hint,
    nodes.zoom,
  );
  const views = el("div", { class: "views", role: "group", "aria-label": texts.views }, nodes.views);
  const bar = el("div", { class: "bar" }, views, nodes.sections, nodes.link);
  const below = el("div", { class: "below" }, best.node, pools.node, nodes.signs);
  // The notice lies over the map: seats must not move away from under a finger when it appears.
  const body = el("div", { class: "body" }, nodes.state, nodes.notice, nodes.map, list.node);
  return el("div", { class: "frame" }, bar, legend.node, body, below, nodes.aloud);
}
