// Stripe's Payment Element. Stripe.js is loaded from js.stripe.com, the only place from which Stripe allows it, and only
// where the shop has a publishable key. The card's number goes to Stripe and never to this server.

import { uuid } from "../api.js";

const STRIPE_JS = "https://js.stripe.com/v3/";
const LOAD_MS_MAX = 15_000;
// Where Stripe counts in other minor units than ISO 4217: 5 ISK are 500 there, and 5.00 MGA are 5.
const SCALE = { ISK: 100, UGX: 100, MGA: 0.01 };

const inStripesUnits = (amount, currency) => Math.round(amount * (SCALE[currency] ?? 1));

let loading = null;

function loadStripe() {
  loading ??= new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: STRIPE_JS, async: true });
    const fail = () => {
      loading = null;
      script.remove();
      reject(new Error("Stripe.js was not loaded"));
    };
    script.onload = () => (window.Stripe ? resolve(window.Stripe) : fail());
    script.onerror = fail;
    setTimeout(() => window.Stripe || fail(), LOAD_MS_MAX);
    document.head.append(script);
  });
  return loading;
}

export class StripeCardForm {
  #stripe;
  #elements;
  #amount;
  #mounted = uuid();
  #version = 0;

  /** Loads Stripe.js and puts the form into `place`, which must not be in a shadow tree. */
  static async mount(place, { key, amount, currency, capture, language }) {
    const form = new StripeCardForm();
    form.#stripe = (await loadStripe())(key, { locale: language });
    form.#amount = amount;
    form.#elements = form.#stripe.elements({
      mode: "payment",
      amount: inStripesUnits(amount, currency),
      currency: currency.toLowerCase(),
      captureMethod: capture, // as the server will create the payment
    });
    const element = form.#elements.create("payment");
    element.on("change", () => (form.#version += 1));
    element.mount(place);
    return form;
  }

  /** The booking costs this now: a token for another amount would not be charged. */
  update({ amount, currency }) {
    if (amount === this.#amount) return;
    this.#amount = amount;
    this.#version += 1;
    this.#elements.update({ amount: inStripesUnits(amount, currency) });
  }

  /** Changes when the buyer changes what they typed, and with every load of the page. */
  get chosen() {
    return `${this.#mounted} ${this.#version}`;
  }

  /** A token for what the buyer typed. Throws an error with a message for the buyer. */
  async token() {
    const checked = await this.#elements.submit();
    if (checked.error) throw new Error(checked.error.message);
    const made = await this.#stripe.createConfirmationToken({ elements: this.#elements });
    if (made.error) throw new Error(made.error.message);
    return made.confirmationToken.id;
  }

  /** Lets the buyer act in a window of Stripe's. What came of it, the server is asked. */
  async act(clientSecret) {
    await this.#stripe.handleNextAction({ clientSecret });
  }
}
