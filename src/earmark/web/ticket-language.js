// The language of the ticket page and of the page for the door: the first of the browser's that there are texts in.

import de from "./texts/ticket-de.js";
import en from "./texts/ticket-en.js";

const TEXTS = { de, en };

/** The language, such as "de"; English where the browser names none of ours. */
export const language = (navigator.languages ?? [navigator.language])
  .map((tag) => tag.slice(0, 2).toLowerCase())
  .find((tag) => tag in TEXTS) ?? "en";

/** The texts of both pages in that language. */
export const texts = TEXTS[language];

/** A browser's own tag of the same language, which knows the country's formats; else ours. */
const locale = (navigator.languages ?? []).find((tag) => tag.toLowerCase().startsWith(language)) ?? language;

/** Sets the page's language, and the text of each element that names one: data-text="print". */
export function fillIn(own) {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = own[element.dataset.text];
}

/** A moment with its time zone, as the language writes it. */
export const moment = (rfc3339) =>
  new Intl.DateTimeFormat(locale, {
    weekday: "long", year: "numeric", month: "long", day: "numeric", hour: "numeric", minute: "2-digit",
    timeZoneName: "short",
  }).format(new Date(rfc3339));

/** A moment in short. */
export const shortMoment = (rfc3339) =>
  new Intl.DateTimeFormat(locale, { dateStyle: "short", timeStyle: "medium" }).format(new Date(rfc3339));

/** Minor units as money. */
export function money({ amount, currency }) {
  const format = new Intl.NumberFormat(locale, { style: "currency", currency });
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

/** What a ticket is for; `units` is how many units of the same pool there are. */
export function placeName(place, units = 1) {
  const own = texts.ticket;
  if (place.kind === "pool") return own.unit(place.id, place.unit, units);
  return place.row === null && place.number === null ? own.seat(place.id) : own.seatOf(place);
}

/** A code in groups of four, as it is easier to type. */
export const inGroups = (code) => code.match(/.{1,4}/g).join(" ");
