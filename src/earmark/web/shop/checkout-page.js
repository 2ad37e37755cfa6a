// The checkout of one booking: details, payment, tickets. Which step is shown follows from what the server says, so a reload,
// the browser's "back" and a link that was kept all lead to where the booking is.

import "../payment/earmark-payment.js";
import * as api from "../api.js";
import { byId, el } from "../dom.js";
import { countOf } from "./basket.js";
import { Clock } from "./clock.js";
import { ContactForm } from "./contact-form.js";
import { HandedOverToken, isLedHereBy } from "./handed-over-token.js";
import { clockFace, contents, duration, money, moment, seatName, texts } from "./language.js";
import { moreTime } from "./more-time.js";
import { hideNotice, notify, notifyError, runPage, say } from "./page-frame.js";

const LOOK_AGAIN_MS = 1000;
const PANELS = { question: "question", details: "details", pay: "pay", ticket: "ticket", ended: "ended" };
const STEPS = ["details", "pay", "ticket"];

const bookingId = new URLSearchParams(location.search).get("booking") ?? "";
let booking = null;
let event = null;
let contact = null;
let wantsDetails = false; // the buyer goes back to change them
let shown = null;
const handedOver = new HandedOverToken(bookingId);
const otherTabs = new BroadcastChannel("earmark.basket");

const clock = new Clock({
  onTick: (left) => {
    for (const face of [byId("order-clock"), byId("bar-clock")]) face.textContent = clockFace(left);
    for (const place of [byId("order"), byId("bar")]) place.classList.toggle("urgent", left <= 60);
  },
  onWarning: warn,
  onEnd: () => runOut(),
});
const form = new ContactForm({ save: saveContact });

api.actAs(handedOver.value);
api.whenTokenEnds(() => {
  handedOver.forget();
  notify("warning", texts.signedOut);
});
runPage({ open, refresh });

// ---- what the server says

async function open() {
  listen();
  try {
    booking = await api.readBooking(bookingId);
  } catch (error) {
    if (![404, 422].includes(error.status)) throw error;
    return showUnknown();
  }
  if (!handedOver.isTrusted && isLedHereBy(await api.listAllowedOrigins())) handedOver.trust();
  [event, contact] = await Promise.all([api.readEvent(booking.event_id), api.readContact(booking.id)]);
  form.fill(contact);
  show();
}

async function refresh() {
  if (!booking) return;
  try {
    booking = await api.readBooking(booking.id);
  } catch (error) {
    if (error.status !== 404) throw error;
    return showUnknown(); // the token that was handed over has ended
  }
  show();
}

function listen() {
  byId("order-details").open = matchMedia("(min-width: 56.01rem)").matches;
  byId("pay-contact-change").onclick = () => {
    wantsDetails = true;
    show();
  };
  otherTabs.onmessage = () => refresh().catch(notifyError); // the basket was changed in another tab
  byId("order-more").onclick = () => act(extend);
  byId("mark-paid").onclick = () => act(markPaid);
  byId("ended-again").onclick = () => act(holdAgain);
  byId("question-continue").onclick = () => (handedOver.trust(), show());
  byId("question-leave").onclick = leave;
}

// ---- what the buyer does

async function act(verb) {
  hideNotice();
  try {
    await verb();
  } catch (error) {
    notifyError(error);
    if ([404, 409, 410].includes(error.status)) await refresh().catch(() => {});
  }
}

function leave() {
  handedOver.forget();
  location.replace("./");
}

async function saveContact(details) {
  contact = await api.saveContact(booking.id, details);
  wantsDetails = false;
  show();
}

async function extend() {
  booking = await api.extend(booking.id, moreTime(booking, event));
  say(texts.moreTimeGiven(clockFace(booking.expires_in)));
  show();
}

let cashId = null; // pressing twice is the same payment

async function markPaid() {
  cashId ??= `box-office-${api.uuid()}`;
  booking = await api.confirm(booking.id, cashId);
  show();
}

// As the guest that this browser is: the token that was handed over is for its one booking.
async function holdAgain() {
  api.actAs(null);
  await api.enter();
  const { event_id: eventId, seats, pools } = booking;
  const units = Object.fromEntries(pools.map((pool) => [pool.id, pool.units]));
  const held = await api.hold(eventId, { seats: seats.map(({ id }) => id), pools: units });
  location.replace(`checkout?booking=${encodeURIComponent(held.id)}`);
}

// The countdown has ended here; the server decides, and its answer is waited for.
async function runOut() {
  await refresh().catch(() => setTimeout(runOut, LOOK_AGAIN_MS));
}

function warn(seconds) {
  const hasMore = moreTime(booking, event) > 0;
  if (seconds === 60) say(hasMore ? texts.warnSoon : texts.warnSoonLast);
  else say(texts.warnNow, { isUrgent: true });
}

// ---- showing it

function stepOf() {
  if (!handedOver.isTrusted) return "question";
  if (booking.state === "confirmed") return "ticket";
  if (booking.state === "paying") return "pay";
  if (booking.state === "held" && booking.expires_in > 0) return contact === null || wantsDetails ? "details" : "pay";
  return "ended";
}

function show() {
  const step = stepOf();
  const isNews = shown !== null && shown !== step;
  shown = step;
  showSteps(step);
  for (const [name, id] of Object.entries(PANELS)) byId(id).hidden = name !== step;
  showOrder(step);
  ({ question: showQuestion, details: showDetails, pay: showPay, ticket: showTicket, ended: showEnded })[step]();
  if (isNews) byId(`${PANELS[step]}-title`).focus();
}

function showSteps(step) {
  byId("steps").hidden = ["question", "ended"].includes(step);
  const at = STEPS.indexOf(step);
  for (const item of byId("steps").children) {
    const place = STEPS.indexOf(item.dataset.step);
    item.dataset.state = place < at ? "done" : place === at ? "now" : "later";
    if (place === at) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  }
}

const contactWords = () => (contact ? texts.ticketsFor(contact.name, contact.email) : "");

const isFree = () => booking.total.amount === 0;

function showQuestion() {
  byId("question-text").textContent = texts.questionText({
    contents: contents(booking),
    event: event.name,
    total: money(booking.total.amount, booking.total.currency),
  });
}

function showDetails() {
  byId("details-next").textContent = isFree() ? texts.toBook : texts.toPay;
}

function showPay() {
  byId("pay-title").textContent = isFree() ? texts.payFreeTitle : texts.payTitle;
  byId("pay-contact").hidden = !contact;
  byId("pay-contact-text").textContent = contactWords();
  byId("pay-contact-change").hidden = booking.state !== "held";
  byId("mark-paid").hidden = api.officeKey() === null || booking.state !== "held";
  const payment = byId("payment-place").firstElementChild;
  if (payment === null) byId("payment-place").append(paymentForm());
  else if (payment.amount !== null && payment.amount !== booking.total.amount) payment.booking = booking.id; // it reads it anew
}

// Made only now: the element takes its language from the page when it is put there.
function paymentForm() {
  const payment = document.createElement("earmark-payment");
  for (const name of ["earmark-paid", "earmark-ended", "earmark-processing", "earmark-declined", "earmark-changed"]) {
    payment.addEventListener(name, () => refresh().catch(notifyError));
  }
  payment.token = api.bearer();
  payment.returnUrl = new URL(`checkout?booking=${encodeURIComponent(booking.id)}`, location.href).href;
  payment.booking = booking.id;
  return payment;
}

async function showTicket() {
  history.replaceState(null, "", `checkout?booking=${encodeURIComponent(booking.id)}`); // without what the bank's page added
  byId("ticket-text").textContent = texts.ticketText(contents(booking));
  byId("ticket-mail").hidden = contact?.mailed !== true;
  byId("ticket-mail").textContent = contact?.mailed === true ? texts.ticketsMailed(contact.email) : "";
  byId("ticket-number").textContent = booking.id;
  const links = [
    ...(handedOver.value ? [] : [el("a", { class: "button", href: "bookings" }, texts.allBookings)]),
    el("a", { class: "button", href: eventPage() }, texts.anotherEvent),
  ];
  byId("ticket-links").replaceChildren(...links);
  const url = await api.ticketPage(booking.id);
  byId("ticket-keep").hidden = url === null || contact?.mailed === true;
  byId("ticket-keep").replaceChildren(texts.ticketsKept, " ", el("a", { href: url }, url));
  if (url) byId("ticket-links").replaceChildren(el("a", { class: "button main", href: url }, texts.openTicket), ...links);
}

function showEnded() {
  const state = texts.ended[booking.state] ? booking.state : "expired";
  byId("ended-title").textContent = texts.endedTitle[state];
  byId("ended-text").textContent = texts.ended[state];
  byId("ended-again").hidden = !["expired", "released", "failed"].includes(state);
  byId("ended-choose").href = eventPage();
}

function showUnknown() {
  booking = null;
  clock.stop();
  for (const [name, id] of Object.entries(PANELS)) byId(id).hidden = name !== "ended";
  for (const id of ["steps", "order", "bar"]) byId(id).hidden = true;
  byId("ended-title").textContent = texts.unknownTitle;
  byId("ended-text").textContent = texts.unknownText;
}

const eventPage = () => `./?event=${encodeURIComponent(booking.event_id)}`;

function showOrder(step) {
  const { currency } = booking.total;
  byId("order").hidden = ["question", "ended"].includes(step);
  byId("order").dataset.state = booking.state;
  byId("order-event").textContent = event.name;
  byId("order-moment").textContent = event.starts_at ? moment(event.starts_at) : "";
  byId("order-lines").replaceChildren(
    ...booking.seats.map((seat) => orderLine(seatName(seat), seat.price, currency)),
    ...booking.pools.map(({ id, units, price }) => orderLine(texts.units(units, id), units * price, currency)),
  );
  const pieces = countOf(booking);
  byId("order-count").textContent = booking.pools.length ? texts.tickets(pieces) : texts.seats(pieces);
  byId("order-total").textContent = byId("bar-total").textContent = money(booking.total.amount, currency);
  byId("order-change").href = eventPage();
  byId("order-change").hidden = handedOver.value !== null; // this browser's own basket is another one
  showTime(step);
}

function showTime(step) {
  const isTimed = step !== "question" && booking.state === "held" && booking.expires_in > 0;
  for (const id of ["order-time", "order-clock", "bar"]) byId(id).hidden = !isTimed;
  if (!isTimed) {
    byId("order").classList.remove("urgent");
    return clock.stop();
  }
  const more = moreTime(booking, event);
  clock.run(booking.deadline);
  byId("order-more").hidden = more === 0;
  byId("order-more").textContent = texts.moreTime(duration(more));
  byId("order-no-more").hidden = more > 0;
}

function orderLine(name, amount, currency) {
  return el("li", {}, el("span", { class: "line-name" }, el("bdi", {}, name)), el("span", { class: "line-price" }, money(amount, currency)));
}
