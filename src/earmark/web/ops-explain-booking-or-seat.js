// The history of a booking, or the state of a seat; and what to do when this key may not read them.

import { el, inline } from "./dom.js";
import * as api from "./ops-api.js";
import { claim, money } from "./format.js";

/** Nodes with the explanation, or with the reason why there is none. */
export async function explain(what, { tellStory, kind }) {
  try {
    const [, event, seat] = /^([^/]+)\/(.+)$/.exec(what) ?? [];
    return seat ? await seatNodes(event, seat, tellStory) : bookingNodes(await api.readBooking(what));
  } catch (error) {
    return [el("p", { class: "notice", "data-kind": "warning" }, inline(refusal(error, what, kind)))];
  }
}

function refusal(error, what, kind) {
  if (error.status === 403)
    return `This key may not read bookings: for that it needs the scope \`sell\` too. Or run: \`earmark explain ${what}\``;
  if ([404, 422].includes(error.status))
    return `No ${kind} booking or seat has that name. A seat is named as \`event/seat\`.`;
  return error.message;
}

async function seatNodes(event, seat, tellStory) {
  const explained = await api.explainSeat(event, seat);
  const id = explained.booking_id;
  const open = id && el("button", { type: "button", class: "plain", click: () => tellStory(id) }, `Show the history of ${id}`);
  return [el("p", {}, el("strong", {}, `${explained.id} of ${event} is ${explained.state}. `), explained.why), open ?? ""];
}

function bookingNodes({ booking, entries, payments }) {
  const { amount, currency } = booking.total;
  const what = `${claim(booking) || "nothing"} of ${booking.event_id}, for ${booking.buyer}, ${money(amount, currency)}.`;
  return [
    el("p", {}, el("strong", {}, `${booking.state[0].toUpperCase()}${booking.state.slice(1)}: `), what),
    el("ol", { class: "timeline" }, entries.map((entry) => entryNode(entry, currency))),
    ...payments.map((payment) => paymentNode(payment, currency)),
  ];
}

function entryNode({ at, verb, before, after, actor, reason, facts }, currency) {
  const moved = before === after ? "" : ` ${before ?? "new"} → ${after}`;
  const paid = facts.payment;
  const money_ = paid?.to && (paid.from === paid.to ? `payment stays ${paid.to}` : `payment ${paid.from} → ${paid.to}`);
  const back = paid?.owed ?? paid?.refund;
  const owed = back ? `${money(back, currency)} owed back` : null;
  return el(
    "li",
    {},
    el("time", { datetime: at }, new Date(at).toLocaleString()),
    el("strong", {}, verb),
    el("span", {}, [moved, money_, owed, reason].filter(Boolean).join("; ")),
    el("span", { class: "quiet small" }, actor),
  );
}

function paymentNode({ id, gateway, state, amount, captured, refunded, code, message }, currency) {
  const sums = `${money(amount.amount, currency)} requested, ${money(captured, currency)} captured, ${money(refunded, currency)} refunded`;
  const why = [code, message].filter(Boolean).join(": ");
  return el("p", {}, `Payment at ${gateway}: `, el("strong", {}, state.replace("_", " ")), `, ${sums}.${why ? ` ${why}.` : ""} `, el("code", {}, id));
}
