// What the buyer sees and hears of a payment: a state read aloud, a reason, the cards, and the buttons. It decides nothing.

import { el } from "../dom.js";

/** What is shown in a state beside its words. */
const PARTS = {
  loading: [],
  ready: ["cards", "pay"],
  working: ["cards", "pay"],
  acting: ["act", "cards", "pay"],
  waiting: [],
  processing: [],
  paid: [],
  over: [],
  unavailable: ["retry"],
};
const CARDS_FIRST = 3; // the others are behind a disclosure: with all of them the button to pay is below the screen
const LOCKED = new Set(["working"]);

export class PaymentView {
  /** `on` has pay, act and retry, which are called when the buyer presses that button. */
  constructor(texts, on) {
    this.texts = texts;
    this.status = el("p", { role: "status", class: "payment-status", tabindex: -1 });
    this.alert = el("p", { role: "alert", class: "payment-alert", tabindex: -1 });
    this.hint = el("p", { class: "payment-hint" }, texts.actHint);
    this.actButton = el("button", { type: "button", class: "payment-act", click: on.act }, texts.act);
    this.actPart = el("div", { class: "payment-action" }, this.hint, this.actButton);
    this.legend = el("legend", {}, texts.legend);
    this.stripePlace = el("div", { class: "payment-stripe" });
    this.choices = el("div", { class: "payment-choices" });
    this.cards = el("fieldset", { class: "payment-cards" }, this.legend, this.choices, this.stripePlace);
    this.payButton = el("button", { type: "submit", class: "payment-pay" });
    this.testMode = el("p", { class: "payment-test" }, texts.testMode);
    this.retryButton = el("button", { type: "button", class: "payment-retry", click: on.retry }, texts.tryAgain);
    const submit = (event) => {
      event.preventDefault();
      on.pay();
    };
    this.form = el("form", { class: "payment-form", novalidate: true, submit }, this.cards, this.testMode, this.payButton);
    this.nodes = [this.status, this.alert, this.actPart, this.form, this.retryButton];
  }

  /** The test cards as radio buttons; none where Stripe's form takes the card, or where nothing is to be paid. */
  offer(cards, { isTest }) {
    const [first, more] = [cards.slice(0, CARDS_FIRST), cards.slice(CARDS_FIRST)].map((some) => some.map((card) => this.#choice(card)));
    const rest = el("details", { class: "payment-more" }, el("summary", {}, this.texts.moreCards), more);
    this.choices.replaceChildren(...first, ...(more.length ? [rest] : []));
    this.hasCards = cards.length > 0;
    this.isTest = isTest;
  }

  /** The method of the test card that is chosen, or null. */
  get chosen() {
    return this.choices.querySelector("input:checked")?.value ?? null;
  }

  choose(method) {
    const radio = [...this.choices.querySelectorAll("input")].find(({ value }) => value === method);
    if (!radio) return;
    radio.checked = true;
    const rest = radio.closest("details");
    if (rest) rest.open = true;
  }

  /** Shows a state with its words, and the reason why the last try failed, if one did. */
  show(state, { status = "", alert = "", price = "" }) {
    const parts = PARTS[state];
    const isLocked = LOCKED.has(state);
    const isNews = alert !== "" && alert !== this.alert.textContent;
    this.#keepFocus(isNews, () => {
      setText(this.status, status);
      setText(this.alert, alert);
      this.actPart.hidden = !parts.includes("act");
      this.form.hidden = !parts.includes("pay");
      this.cards.hidden = !(this.hasCards || this.hasStripe);
      this.testMode.hidden = !this.isTest;
      this.retryButton.hidden = !parts.includes("retry");
      this.form.setAttribute("aria-busy", isLocked);
      this.cards.disabled = this.payButton.disabled = this.actButton.disabled = isLocked;
      this.stripePlace.inert = isLocked;
      this.payButton.textContent = price;
    });
  }

  /** A buyer whose button went away or was locked hears the state, and goes on from there. */
  #keepFocus(isNews, change) {
    const before = document.activeElement;
    const wasHere = this.nodes.some((node) => node.contains(before));
    change();
    const isLost = before?.disabled || before?.closest("fieldset:disabled, [hidden], [inert]");
    if (wasHere && (isLost || isNews)) (isNews ? this.alert : this.status).focus();
  }

  #choice(card) {
    const brand = card.brand.charAt(0).toUpperCase() + card.brand.slice(1);
    return el(
      "label",
      { class: "payment-card" },
      el("input", { type: "radio", name: "payment-card", value: card.method }),
      el(
        "span",
        {},
        el("strong", {}, this.texts.cardName({ brand, last4: card.last4 })),
        el("span", { class: "payment-does" }, this.texts.cardDoes(card)),
      ),
    );
  }
}

// The same words again would be read aloud again.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
