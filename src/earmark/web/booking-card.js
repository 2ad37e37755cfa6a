// One card per booking of this buyer: the countdown and the buttons while it is held, a receipt once it is paid.

import { Countdown } from "./countdown-timer.js";
import { el } from "./dom.js";
import { claim, clock, money } from "./format.js";

const EXTEND_SECONDS = 120;
const URGENT_SECONDS = 60;

export class HoldCard {
  /** `act` has the verbs extend, confirm, release and expire, each taking this card, and hasKey, giveKey and say. */
  constructor(booking, act) {
    this.act = act;
    this.node = el("article", { class: "card hold", "data-booking": booking.id });
    this.update(booking);
  }

  /** Renders again only when the state changed; an extension only restarts the countdown. */
  update(booking) {
    const isSameState = this.booking?.state === booking.state;
    this.booking = booking;
    if (!isSameState) this.node.replaceChildren(...(booking.state === "held" ? this.#held() : this.#receipt()));
    this.node.dataset.state = booking.state;
    if (booking.state !== "held") this.countdown?.stop();
    else this.#startClock();
  }

  focus() {
    this.node.querySelector("h2").focus();
  }

  remove() {
    this.countdown?.stop();
    this.node.remove();
  }

  /** Opens the field for the box office key. */
  askForKey() {
    this.office.hidden = false;
    this.office.querySelector("input").focus();
  }

  #held() {
    const button = (label, verb, kind = "") =>
      el("button", { type: "button", class: kind, click: () => this.#do(verb) }, label);
    this.face = el("p", { class: "clock", role: "timer", "aria-label": "Time left" });
    this.bar = el("div", { class: "fill" });
    this.office = this.#officeField();
    return [
      el("header", {}, el("h2", { tabindex: -1 }, "On hold for you"), this.face),
      el("div", { class: "bar", "aria-hidden": "true" }, this.bar),
      ...this.#lines(),
      el(
        "div",
        { class: "actions" },
        button("Confirm", "confirm", "main"),
        button(`+${EXTEND_SECONDS / 60} minutes`, "extend"),
        button("Release", "release"),
      ),
      el("p", { class: "quiet small" }, "Confirm is for the box office: it records that you have paid, and needs a key."),
      this.office,
    ];
  }

  #receipt() {
    const stamp = el("span", { class: "stamp", "aria-hidden": "true" }, "Paid");
    return [
      el("header", {}, el("h2", { tabindex: -1 }, "Paid, and yours"), stamp),
      ...this.#lines(),
      el("p", { class: "quiet small" }, "Booking ", el("code", {}, this.booking.id)),
    ];
  }

  #lines() {
    const { seats, pools, total } = this.booking;
    const line = (name, amount) => el("li", {}, el("span", {}, name), el("span", {}, money(amount, total.currency)));
    return [
      el(
        "ul",
        { class: "lines" },
        seats.map((seat) => line(`Seat ${seat.id}`, seat.price)),
        pools.map((pool) => line(`${pool.units} × ${pool.id}`, pool.units * pool.price)),
      ),
      el("p", { class: "total" }, el("span", {}, "Total"), el("strong", {}, money(total.amount, total.currency))),
    ];
  }

  #officeField() {
    const id = `key-${this.booking.id}`;
    const input = el("input", { id, type: "password", autocomplete: "off", required: true, placeholder: "ek_…" });
    const submit = (event) => {
      event.preventDefault();
      this.office.hidden = true;
      this.act.giveKey(input.value);
      this.#do("confirm");
    };
    return el(
      "form",
      { class: "office", hidden: true, submit },
      el("label", { for: id }, "Box office key"),
      el("div", { class: "field" }, input, el("button", { class: "main" }, "Mark as paid")),
      el("p", { class: "quiet small" }, "It is kept in this tab only, and sent only when a hold is confirmed."),
    );
  }

  // One verb at a time; the button that was pressed keeps its focus.
  async #do(verb) {
    if (verb === "confirm" && !this.act.hasKey()) return this.askForKey();
    if (this.node.getAttribute("aria-busy") === "true") return;
    this.node.setAttribute("aria-busy", "true");
    try {
      await this.act[verb](this, EXTEND_SECONDS);
    } finally {
      this.node.removeAttribute("aria-busy");
    }
  }

  #startClock() {
    const { deadline } = this.booking;
    this.fullSeconds = Math.max(1, this.booking.expires_in);
    this.countdown?.stop();
    this.countdown = new Countdown({
      deadline,
      onTick: (left) => this.#tick(left),
      onZero: () => this.act.expire(this),
    });
  }

  #tick(left) {
    const isUrgent = left <= URGENT_SECONDS;
    const isNews = isUrgent && !this.node.classList.contains("urgent");
    if (isNews) this.act.say(`${Math.ceil(left)} seconds left for ${claim(this.booking)}.`);
    this.node.classList.toggle("urgent", isUrgent);
    this.face.textContent = clock(left);
    this.bar.style.width = `${(100 * left) / this.fullSeconds}%`;
  }
}
