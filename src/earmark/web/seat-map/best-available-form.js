// How many seats, of which price: a button asks for the best of them.

import { el } from "../dom.js";
import { levelName, levelPrice } from "./price-legend.js";

const COUNT_MAX = 20;

export class BestAvailableForm {
  #levels = "";

  /** onPick({count, level}) with the number of a price level, or null for any. */
  constructor({ model, texts, onPick, countMax }) {
    this.model = model;
    this.texts = texts;
    this.countMax = countMax;
    this.count = el("input", { type: "number", min: 1, value: 2, inputmode: "numeric", "aria-label": texts.howMany });
    this.level = el("select", { "aria-label": texts.price });
    const step = (by, sign, label) =>
      el("button", { type: "button", "aria-label": label, click: () => this.#step(by) }, sign);
    const [fewer, more] = [step(-1, "−", texts.oneLess(texts.seat)), step(1, "+", texts.oneMore(texts.seat))];
    this.node = el(
      "form",
      { class: "best", submit: (event) => this.#submit(event, onPick) },
      el("h3", {}, texts.bestAvailable),
      el("div", { class: "stepper" }, fewer, this.count, more),
      this.level,
      el("button", { class: "main" }, texts.pickBest),
    );
  }

  render(money) {
    this.node.hidden = this.model.count === 0;
    const { model, texts } = this;
    const options = model.levels.map((level) => `${levelName(level, texts)}, ${levelPrice(level, money, texts)}`);
    this.level.hidden = options.length < 2;
    if (this.#levels === options.join("\n")) return;
    this.#levels = options.join("\n");
    const any = el("option", { value: "" }, this.texts.anyCategory);
    this.level.replaceChildren(any, ...options.map((words, number) => el("option", { value: number }, words)));
  }

  #step(by) {
    const most = Math.min(COUNT_MAX, this.countMax() ?? COUNT_MAX);
    this.count.value = Math.min(Math.max(1, (Math.trunc(Number(this.count.value)) || 1) + by), most);
  }

  #submit(event, onPick) {
    event.preventDefault();
    this.#step(0);
    onPick({ count: Number(this.count.value), level: this.level.value === "" ? null : Number(this.level.value) });
  }
}
