// The story of a booking, or of a seat, from the calls that tell it; and what to do when this key may not ask them.

import { el, inline } from "./dom.js";
import * as api from "./ops-api.js";
import { claim, money } from "./text.js";

/** Nodes that tell it, or that say why they cannot. */
export async function explain(what, { tellStory, kind }) {
  try {
    const [, event, seat] = /^([^/]+)\/(.+)$/.exec(what) ?? [];
    return seat ? await tellSeat(event, seat, tellStory) : tellBooking(await api.readBooking(what));
  } catch (error) {
    return [el("p", { class: "notice", "data-kind": "warning" }, inline(refusal(error, what, kind)))];
  }
}

function refusal(error, what, kind) {
  if (error.status === 403)
    return `This key may not look at bookings: for that it needs the scope \`sell\` too. Or ask: \`earmark explain ${what}\``;
  if ([404, 422].includes(error.status))
    return `There is nothing of that name among the ${kind} bookings and seats. A seat is named as \`event/seat\`.`;
  return error.message;
}

async function tellSeat(event, seat, tellStory) {
  const told = await api.explainSeat(event, seat);
  const id = told.booking_id;
  const open = id && el("button", { type: "button", class: "plain", click: () => tellStory(id) }, `Tell the story of ${id}`);
  return [el("p", {}, el("strong", {}, `${told.id} of ${event} is ${told.state}. `), told.why), open ?? ""];
}

function tellBooking({ booking, entries, payments }) {
  const { amount, currency } = booking.total;
  const what = `${claim(booking) || "nothing"} of ${booking.event_id}, for ${booking.buyer}, ${money(amount, currency)}.`;
  return [
    el("p", {}, el("strong", {}, `${booking.state[0].toUpperCase()}${booking.state.slice(1)}: `), what),
    el("ol", { class: "timeline" }, entries.map((entry) => tellEntry(entry, currency))),
    ...payments.map((payment) => tellPayment(payment, currency)),
  ];
}

function tellEntry({ at, verb, before, after, actor, reason, facts }, currency) {
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

function tellPayment({ id, gateway, state, amount, captured, refunded, code, message }, currency) {
  const told = `${money(amount.amount, currency)} asked, ${money(captured, currency)} taken, ${money(refunded, currency)} given back`;
  const why = [code, message].filter(Boolean).join(": ");
  return el("p", {}, `Payment at ${gateway}: `, el("strong", {}, state.replace("_", " ")), `, ${told}.${why ? ` ${why}.` : ""} `, el("code", {}, id));
}
