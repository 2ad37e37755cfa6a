// The prices with their colours and patterns; each is a button that shows only its seats.

import { el } from "../dom.js";
import { drawSeat } from "./seat-sprites.js";
import { LOOKS } from "./seat-states.js";

const PICTURE_PX = 44; // drawn at twice the size it is shown in

/** A seat of a look and price level as a small picture. */
export function seatPicture(theme, look, level = 0) {
  const canvas = el("canvas", { width: PICTURE_PX, height: PICTURE_PX, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.translate(PICTURE_PX / 2, PICTURE_PX / 2);
  drawSeat(pen, { look, level, theme, r: 0.44 * PICTURE_PX });
  return canvas;
}

export class PriceLegend {
  /** onFilter() after the filter of the model has changed. */
  constructor({ model, texts, onFilter }) {
    this.model = model;
    this.texts = texts;
    this.onFilter = onFilter;
    this.node = el("div", { class: "prices", role: "group", "aria-label": texts.prices });
  }

  render(theme, money) {
    const { model } = this;
    const focused = this.node.getRootNode().activeElement?.dataset?.level;
    this.node.hidden = model.levels.length === 0;
    const buttons = model.levels.map((level, number) => {
      const isPressed = String(model.isInFilter(number));
      return el(
        "button",
        { type: "button", "aria-pressed": isPressed, "data-level": number, click: () => this.#toggle(number) },
        seatPicture(theme, 0, number),
        el("span", {}, levelName(level, this.texts)),
        el("small", {}, levelPrice(level, money, this.texts)),
      );
    });
    const all = el("button", { type: "button", "data-level": "all", click: () => this.#set([]) }, this.texts.showAll);
    this.node.replaceChildren(...buttons, ...(model.isFiltered ? [all] : []));
    if (focused) (this.node.querySelector(`[data-level="${focused}"]`) ?? buttons[0])?.focus();
  }

  #toggle(number) {
    const chosen = new Set([...this.model.levels.keys()].filter((level) => this.model.isInFilter(level)));
    if (!chosen.delete(number)) chosen.add(number);
    this.#set(chosen.size === this.model.levels.length ? [] : [...chosen]);
  }

  #set(levels) {
    this.model.filter(levels);
    this.onFilter();
  }
}

/** What a price level is called: its category, as the shop wrote it. */
export const levelName = (level, texts) =>
  level.category ? level.category[0].toUpperCase() + level.category.slice(1) : texts.unnamedCategory;

export const levelPrice = (level, money, texts) =>
  level.price === level.priceMax
    ? money.short(level.price)
    : texts.otherPrices(money.short(level.price), money.short(level.priceMax));

/** What the signs mean: only those that are on the map now. */
export function signList(model, theme, texts) {
  if (model.count === 0) return [];
  const seen = new Set([1]);
  for (let at = 0; at < model.count; at++) seen.add(model.lookOf(at));
  const shown = [...LOOKS.keys()].filter((look) => look > 0 && seen.has(look));
  return shown.map((look) => el("li", {}, seatPicture(theme, look), texts.states[LOOKS[look].name]));
}
