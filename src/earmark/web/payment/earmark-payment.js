// <earmark-payment>: pays for a booking on Earmark's own checkout page. The server decides; this element shows its states.
//
//   held ─ Pay ─► working ─► paid │ declined: another card │ acting: the buyer's bank asks │ processing: wait, no second Pay
//
// Properties: `booking` (an id), `token` (a buyer's; without one the guest's cookie counts), `api` (instead of the token),
// `returnUrl` (where the bank's page leads back to; else this page). Events: earmark-paid, earmark-declined,
// earmark-processing, earmark-ended, earmark-changed (the booking costs something else than was shown). Not for pages of other sites, and not inside a shadow tree: Stripe's form works in none.

import german from "../texts/payment-de.js";
import english from "../texts/payment-en.js";
import { NoAnswer, PaymentRefused, paymentApi } from "./payment-api.js";
import { addStyles } from "./payment-styles.js";
import { PaymentTry } from "./payment-try.js";
import { PaymentView } from "./payment-view.js";
import { StripeCardForm } from "./stripe-card-form.js";

const TEXTS = { de: german, en: english };
const POLL_MS = 1000;
const POLL_MS_MAX = 15_000;
const POLL_GROWTH = 1.5;
const SEND_PAUSES_MS = [400, 1200];
const PROPERTIES = ["booking", "token", "api", "returnUrl"];
const OF_THE_RETURN = ["payment_intent", "payment_intent_client_secret", "redirect_status"];

class EarmarkPayment extends HTMLElement {
  static observedAttributes = ["booking"];

  #id = null;
  #token = null;
  #api = null;
  #returnUrl = null;
  #view = null;
  #try = null;
  #booking = null;
  #missing = ""; // why no card can be taken
  #open = null; // the payment that waits for its buyer
  #stripe = null;
  #state = null;
  #status = "";
  #alert = "";
  #isBusy = false;
  #isLost = false; // the last request had no answer
  #run = 0; // what was asked for before the last load is not shown any more
  #timer = null;
  #pause = POLL_MS;

  get booking() { return this.#id; }
  set booking(id) { this.#id = id; this.#begin(); }
  get token() { return this.#token; }
  set token(token) { this.#token = token; this.#begin(); }
  get api() { return this.#api ?? paymentApi({ token: this.#token }); }
  set api(api) { this.#api = api; this.#begin(); }
  /** What the button says that is paid, in minor units; null while nothing is shown. */
  get amount() { return this.#booking?.total.amount ?? null; }
  get returnUrl() { return this.#returnUrl ?? pageWithoutReturn().href; }
  set returnUrl(url) { this.#returnUrl = url; }

  attributeChangedCallback(_, __, id) {
    this.booking = id;
  }

  connectedCallback() {
    addStyles();
    PROPERTIES.forEach((name) => this.#takeEarly(name));
    const on = { pay: () => this.#pay(), act: () => this.#act(this.#open), retry: () => this.#load() };
    this.#view = new PaymentView(this.#texts, on);
    this.replaceChildren(...this.#view.nodes);
    addEventListener("pageshow", this.#onPageShow);
    document.addEventListener("visibilitychange", this.#onVisibility);
    this.#begin();
  }

  /** A property that was set before this module was loaded. */
  #takeEarly(name) {
    if (!Object.hasOwn(this, name)) return;
    const value = this[name];
    delete this[name];
    this[name] = value;
  }

  disconnectedCallback() {
    this.#run += 1;
    clearTimeout(this.#timer);
    removeEventListener("pageshow", this.#onPageShow);
    document.removeEventListener("visibilitychange", this.#onVisibility);
  }

  // The browser's "back" from the bank's page shows this page as it was left.
  #onPageShow = ({ persisted }) => persisted && this.#load();
  #onVisibility = () => document.hidden || !this.#timer || this.#pollNow();

  get #texts() {
    const language = this.closest("[lang]")?.lang || document.documentElement.lang || navigator.language;
    return TEXTS[language.slice(0, 2).toLowerCase()] ?? english;
  }

  // ---- what the server says

  /** Loads once all properties were set that the same script sets. */
  #begin() {
    const run = ++this.#run;
    queueMicrotask(() => run === this.#run && this.isConnected && this.#id && this.#load());
  }

  async #load() {
    this.#isBusy = false;
    this.#open = this.#booking = null;
    this.#try = new PaymentTry(this.#id);
    this.#pause = POLL_MS;
    const isBack = forgetReturn();
    this.#show("loading", { status: this.#texts.loading });
    await this.#guarded(async () => {
      const facts = await this.#read();
      if (isBack && this.#isOurs(facts.payment)) await this.#recheck();
      else await this.#settle(facts);
    });
  }

  /** Runs a step of this load. Silence is told, and asked about until there is an answer. */
  async #guarded(step) {
    const run = ++this.#run;
    clearTimeout(this.#timer);
    try {
      await step();
    } catch (error) {
      if (run !== this.#run) return;
      if (error instanceof NoAnswer || error.status >= 500) this.#askLater();
      else this.#show("unavailable", { alert: this.#texts.wrong(error.message) });
    }
  }

  #askLater() {
    this.#isLost = true;
    this.#show("waiting", { status: this.#texts.unreachable });
    this.#pollLater();
  }

  /** The booking and its open payment; the ways to pay are read once. */
  async #read() {
    const booking = await this.api.readBooking(this.#id);
    const isOpen = booking.state === "paying";
    const payments = isOpen ? await this.api.listPayments(this.#id) : [];
    if (!this.#booking && (isOpen || booking.state === "held")) await this.#offer(booking);
    this.#booking = booking;
    if (booking.total.amount > 0) this.#stripe?.update(booking.total);
    return { booking, payment: payments.find(({ id }) => id === booking.payment_id) ?? null };
  }

  async #offer(booking) {
    if (booking.total.amount === 0) return this.#view.offer([], { isTest: false });
    const { gateways } = await this.api.listMethods(booking.event_id);
    const gateway = gateways.find(({ cards, publishable_key: key }) => cards.length || key) ?? null;
    this.#view.offer(gateway?.cards ?? [], { isTest: gateway?.mode === "test" });
    this.#missing = gateway ? "" : this.#texts.unavailable;
    if (gateway?.publishable_key && !this.#stripe) await this.#mountStripe(booking, gateway);
  }

  async #mountStripe(booking, { publishable_key: key, capture }) {
    const { amount, currency } = booking.total;
    const how = { key, amount, currency, capture, language: this.#texts.language };
    this.#stripe = await StripeCardForm.mount(this.#view.stripePlace, how).catch(() => null);
    this.#view.hasStripe = this.#stripe !== null;
    if (!this.#stripe) this.#missing = this.#texts.stripeMissing;
  }

  /** Shows the state that the server has; `alert` is why the last try came to nothing. */
  async #settle({ booking, payment }, { alert = "" } = {}) {
    this.#open = payment?.state === "requires_action" ? payment : null;
    if (booking.state === "confirmed") return this.#paid(booking);
    if (booking.state === "held") return this.#held(alert);
    if (this.#open) return this.#waitForBuyer(alert);
    if (booking.state === "paying") return this.#process(booking, payment);
    this.#ended(booking, alert);
  }

  async #held(alert) {
    const last = this.#booking.total.amount === 0 || alert ? null : this.#try.last;
    const result = last ? await this.api.readResult(last.key) : null;
    if (result?.state === "in_progress") return this.#process(this.#booking, null);
    if (result?.state === "done" && result.status === 402) {
      if (!last.answered) this.#declined(result.answer);
      alert = this.#reason(result.answer);
    } else if (last && !last.answered) {
      if (this.#isLost) alert = this.#texts.notArrived;
      this.#view.choose(last.chosen);
    }
    this.#isLost = false;
    this.#ready(alert);
  }

  #ready(alert = "") {
    const { amount } = this.#booking.total;
    if (amount > 0 && this.#missing) return this.#show("unavailable", { alert: alert || this.#missing });
    this.#show("ready", { alert, status: amount > 0 ? "" : this.#texts.free });
  }

  #paid(booking) {
    const isNews = this.#state !== "paid";
    this.#try.answered();
    this.#show("paid", { status: booking.total.amount > 0 ? this.#texts.paid : this.#texts.bookedFree });
    if (isNews) this.#emit("earmark-paid", { booking });
  }

  #process(booking, payment) {
    const isNews = this.#state !== "processing";
    this.#show("processing", { status: this.#texts.processing });
    if (isNews) this.#emit("earmark-processing", { booking, payment });
    this.#pollLater();
  }

  /** The reason that is shown stays while the state does. */
  #waitForBuyer(alert = "") {
    if (!alert && this.#state === "acting") alert = this.#alert;
    this.#show("acting", { status: this.#texts.acting, alert });
    this.#pollLater();
  }

  #ended(booking, alert) {
    const isNews = this.#state !== "over";
    const status = booking.state === "expired" ? this.#texts.over : this.#texts.lost;
    this.#show("over", { status: alert ? "" : status, alert });
    if (isNews) this.#emit("earmark-ended", { booking });
  }

  #declined({ why, state }) {
    this.#try.answered();
    this.#emit("earmark-declined", { why, state });
  }

  #reason({ why, state }) {
    const reason = this.#texts.reasons[why] ?? this.#texts.reasons.other;
    return state === "held" ? this.#texts.declined(reason) : this.#texts.declinedForGood(reason);
  }

  // ---- asking again

  #pollLater() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#pollNow(), this.#pause);
    this.#pause = Math.min(POLL_MS_MAX, this.#pause * POLL_GROWTH);
  }

  #pollNow() {
    if (this.#isBusy || !["waiting", "processing", "acting"].includes(this.#state)) return;
    this.#guarded(async () => {
      const run = this.#run;
      const facts = await this.#read();
      if (run === this.#run) await this.#settle(facts);
    });
  }

  /** Whether the open payment is that of this tab's last try: then the same request again asks its gateway. */
  #isOurs(payment) {
    return payment !== null && this.#try.last?.payment === payment.id;
  }

  async #recheck() {
    this.#show("waiting", { status: this.#texts.checking });
    const { key, body } = this.#try.last;
    await this.#attempt(async () => this.#take(await this.#send(key, body), { isRecheck: true }));
  }

  // ---- paying

  async #pay() {
    if (this.#isBusy) return;
    const chosen = this.#booking.total.amount === 0 ? "nothing" : this.#stripe?.chosen ?? this.#view.chosen;
    if (chosen === null) return this.#show(this.#state, { status: this.#status, alert: this.#texts.choose });
    const { amount } = this;
    const before = this.#open;
    this.#show("working", { status: this.#texts.working });
    await this.#attempt(async () => {
      const one = await this.#begun(chosen, amount);
      await this.#take(await this.#send(one.key, one.body), { before });
    });
  }

  /** This try, with the amount that the buyer was shown, recorded before it is sent. A card that was typed becomes a token once. */
  async #begun(chosen, amount) {
    const last = this.#try.last;
    if (last && !last.answered && last.chosen === chosen) return last;
    if (chosen === "nothing") return this.#try.begin(chosen, { amount });
    const method = this.#stripe ? await this.#stripe.token() : chosen;
    return this.#try.begin(chosen, { amount, method, return_url: this.returnUrl });
  }

  /** Sends it, and again where no answer came: the key makes it the same payment. */
  async #send(key, body) {
    for (const pause of SEND_PAUSES_MS) {
      try {
        return await this.api.pay(this.#id, key, body);
      } catch (error) {
        if (!isUnanswered(error)) throw error;
      }
      await new Promise((wake) => setTimeout(wake, pause));
    }
    return this.api.pay(this.#id, key, body);
  }

  async #attempt(step) {
    this.#isBusy = true;
    const run = ++this.#run;
    clearTimeout(this.#timer);
    this.#pause = POLL_MS;
    try {
      await step();
    } catch (error) {
      if (run === this.#run) await this.#refused(error);
    } finally {
      if (run === this.#run) this.#isBusy = false;
    }
  }

  /** The answer to a request to pay: sold, or a payment that is open. */
  async #take(paid, { before = null, isRecheck = false }) {
    const { payment } = paid;
    if (paid.id !== this.#id) return undefined; // another booking was set meanwhile
    this.#booking = paid;
    if (payment === null || paid.state === "confirmed") return this.#paid(paid);
    this.#open = payment.state === "requires_action" ? payment : null;
    if (before?.id === payment.id && this.#view.chosen !== payment.method) {
      this.#try.answered(); // not of this try: what it asked for was not opened
      return this.#open ? this.#waitForBuyer(this.#texts.stillOpen) : this.#process(paid, payment);
    }
    this.#try.opened(payment.id);
    if (!this.#open) return this.#process(paid, payment);
    return isRecheck ? this.#waitForBuyer() : this.#act(payment);
  }

  async #act(payment) {
    const url = httpUrl(payment.action?.url);
    if (url) {
      this.#show("waiting", { status: this.#texts.leaving });
      return location.assign(url);
    }
    if (!payment.action?.client_secret || !this.#stripe) return this.#waitForBuyer();
    this.#show("waiting", { status: this.#texts.actingInPage });
    await this.#stripe.act(payment.action.client_secret).catch(() => {});
    this.#isBusy = false;
    if (this.#isOurs(payment)) return this.#recheck();
    return this.#guarded(async () => this.#settle(await this.#read()));
  }

  /** The request was refused, or not sent: the server is asked how the booking stands, and the reason is shown. */
  async #refused(error) {
    if (isUnanswered(error)) return this.#askLater();
    let alert = error.message;
    if (error instanceof PaymentRefused) {
      if (error.code !== "gateway_unavailable") this.#try.answered();
      if (error.code === "payment_declined") this.#declined(error);
      alert = this.#alertFor(error);
    }
    this.#isBusy = false;
    await this.#guarded(async () => this.#settle(await this.#read(), { alert }));
    if (error.code === "total_changed") this.#emit("earmark-changed", { booking: this.#booking });
  }

  #alertFor(error) {
    switch (error.code) {
      case "payment_declined":
        return this.#reason(error);
      case "total_changed":
        return this.#texts.totalChanged(money(error.total, this.#booking.total.currency, this.#texts.language));
      case "too_many_declines":
        return this.#texts.tooMany;
      case "gateway_unavailable":
        return this.#texts.shopFault;
      case "booking_expired":
      case "booking_resolved":
      case "payment_in_progress":
        return ""; // the state of the booking says it
      default:
        return this.#texts.wrong(error.message);
    }
  }

  // ---- showing

  #show(state, { status = "", alert = "" }) {
    this.#state = state;
    this.#status = status;
    this.#alert = alert;
    this.dataset.state = state;
    this.#view.show(state, { status, alert, price: this.#payLabel(state) });
  }

  #payLabel(state) {
    if (!this.#booking) return "";
    const { amount, currency } = this.#booking.total;
    if (amount === 0) return this.#texts.book;
    const price = money(amount, currency, this.#texts.language);
    return state === "acting" ? this.#texts.payAgain(price) : this.#texts.pay(price);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

const isUnanswered = (error) =>
  error instanceof NoAnswer ||
  error.code === "idempotency_in_progress" ||
  (error.status >= 500 && error.code !== "gateway_unavailable");

function httpUrl(text) {
  if (!text || !URL.canParse(text)) return null;
  return ["http:", "https:"].includes(new URL(text).protocol) ? text : null;
}

/** This page's address, without what a bank's page adds to it. */
function pageWithoutReturn() {
  const page = new URL(location.href);
  OF_THE_RETURN.forEach((name) => page.searchParams.delete(name));
  page.hash = "";
  return page;
}

/** Whether the buyer comes back from a bank's page; its secret is taken out of the address bar. */
function forgetReturn() {
  const isBack = new URLSearchParams(location.search).has("redirect_status");
  if (isBack) history.replaceState(history.state, "", pageWithoutReturn().href);
  return isBack;
}

function money(amount, currency, language) {
  const format = new Intl.NumberFormat(language, { style: "currency", currency });
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

customElements.define("earmark-payment", EarmarkPayment);
