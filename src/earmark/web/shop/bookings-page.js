// All bookings of this buyer: what is still to be paid, what is theirs, and what is past.

import * as api from "../api.js";
import { byId, el } from "../dom.js";
import { BookingCard } from "./booking-card.js";
import { CancelDialog } from "./cancel-dialog.js";
import { clockFace, contents, money, texts } from "./language.js";
import { moreTime } from "./more-time.js";
import { hideNotice, notify, notifyError, runPage } from "./page-frame.js";

const ENDED_SHOWN_MAX = 20;
const PAYMENT_MS = 4000;
const GROUPS = [
  { name: "groupOpen", states: ["held", "paying"] },
  { name: "groupSold", states: ["confirmed"] },
  { name: "groupEnded", states: ["cancelled", "failed", "expired", "released"] },
];

const events = new Map(); // id → event
let cards = [];
let paymentTimer = null;
const dialog = new CancelDialog();

runPage({ open: read, refresh: read });

async function read() {
  const bookings = (await api.listBookings()).reverse();
  const unknown = [...new Set(bookings.map(({ event_id: id }) => id))].filter((id) => !events.has(id));
  const found = await Promise.all(unknown.map((id) => api.readEvent(id).catch(unlessUnreachable)));
  unknown.forEach((id, at) => events.set(id, found[at]));
  show(bookings);
}

// An event that was removed leaves its bookings without a name.
function unlessUnreachable(error) {
  if (error.status === 404) return null;
  throw error;
}

function show(bookings) {
  for (const card of cards) card.stop();
  const focused = document.activeElement?.closest("[data-booking]")?.dataset.booking;
  cards = [];
  const groups = GROUPS.map(({ name, states }) => group(name, bookings.filter(({ state }) => states.includes(state))));
  byId("groups").replaceChildren(...groups.filter(Boolean));
  byId("none").hidden = bookings.length > 0;
  clearTimeout(paymentTimer);
  if (bookings.some(({ state }) => state === "paying")) paymentTimer = setTimeout(lookAtPayment, PAYMENT_MS);
  if (focused) document.querySelector(`[data-booking="${CSS.escape(focused)}"]`)?.focus();
}

// A payment ends without this page: at the gateway, or in another tab.
async function lookAtPayment() {
  await read().catch(() => (paymentTimer = setTimeout(lookAtPayment, PAYMENT_MS)));
}

function group(name, bookings) {
  if (bookings.length === 0) return null;
  const shown = bookings.slice(0, name === "groupEnded" ? ENDED_SHOWN_MAX : undefined).map((booking) => {
    const card = new BookingCard({ booking, event: events.get(booking.event_id), does });
    cards.push(card);
    return card.node;
  });
  const heading = el("h2", { id: name }, texts[name]);
  return el("section", { class: "group", "aria-labelledby": name }, heading, ...shown);
}

// ---- what the buyer does

const does = {
  extend: (booking) =>
    attempt(async () => {
      const seconds = moreTime(booking, events.get(booking.event_id));
      const { expires_in: left } = await api.extend(booking.id, seconds);
      notify("good", texts.extended(clockFace(left)));
    }),
  release: (booking) =>
    attempt(async () => {
      await api.release(booking.id);
      notify("good", texts.released(contents(booking)));
    }),
  cancel: async (booking) => {
    const event = events.get(booking.event_id);
    if (!(await dialog.asks(booking, event))) return;
    await attempt(async () => {
      const { money: what, total } = await api.cancel(booking.id);
      const refund = what?.refund ? ` ${texts.refundComes(money(what.refund, total.currency))}` : "";
      notify("good", texts.cancelled + refund);
    });
  },
  runOut: () => read().catch(notifyError),
};

async function attempt(verb) {
  hideNotice();
  await verb().catch(notifyError);
  await read().catch(notifyError);
}
