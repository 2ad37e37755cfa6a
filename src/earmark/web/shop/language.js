// The language of the shop's pages: chosen by ?lang=, remembered in this browser, else that of the browser; on a page of
// another site, that of the page. All words of a page come from one file per language; money, dates, numbers and lists are
// written by Intl in the same language.

import { isAtHome } from "../api.js";
import { byId, el } from "../dom.js";
import de from "../texts/shop-de.js";
import en from "../texts/shop-en.js";

const TEXTS = { en, de };
const KEPT = "earmark.language";

export const language = choose();
export const texts = TEXTS[language];
/** The browser's own variant of the language, such as en-GB, so that dates are written as the buyer knows them. */
export const locale = navigator.languages.find((tag) => tag.toLowerCase().split("-")[0] === language) ?? language;

function choose() {
  const asked = isAtHome ? new URLSearchParams(location.search).get("lang") : null;
  if (asked in TEXTS) remember(asked);
  const page = isAtHome ? [] : [document.documentElement.lang.toLowerCase().split("-")[0]];
  const wanted = [asked, ...page, recall(), ...navigator.languages.map((tag) => tag.toLowerCase().split("-")[0])];
  return wanted.find((tag) => tag in TEXTS) ?? "en";
}

// A browser may forbid a page to keep anything: the language is then chosen anew on each page.
function remember(tag) {
  try {
    localStorage.setItem(KEPT, tag);
  } catch {}
}

function recall() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

/** Writes the words of the page's own markup, and the links to the other languages. */
export function translatePage() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = texts[node.dataset.text];
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", texts[node.dataset.label]);
  byId("languages").replaceChildren(...Object.keys(TEXTS).map(languageLink));
}

function languageLink(tag) {
  const url = new URL(location.href);
  url.searchParams.set("lang", tag);
  url.hash = "";
  const isCurrent = tag === language;
  const { languageName: name } = TEXTS[tag];
  return el("a", { href: url, lang: tag, hreflang: tag, "aria-label": `${tag.toUpperCase()}, ${name}`, title: name, "aria-current": isCurrent && "true" }, tag.toUpperCase());
}

// ---- money, dates, numbers

const moneyFormats = new Map();

/** Minor units as money: (4500, "EUR") reads €45.00, (4500, "JPY") reads ¥4,500. */
export function money(amount, currency) {
  if (!moneyFormats.has(currency)) {
    moneyFormats.set(currency, new Intl.NumberFormat(locale, { style: "currency", currency }));
  }
  const format = moneyFormats.get(currency);
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

const longMoment = new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "short" });
const shortMoment = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });
const words = new Intl.ListFormat(locale, { type: "conjunction" });

/** A moment in the time zone of the browser, with the day of the week. */
export const moment = (rfc3339) => longMoment.format(new Date(rfc3339));
export const momentBriefly = (rfc3339) => shortMoment.format(new Date(rfc3339));

/** "A1", "A1 and A2", "A1, A2 and A3". */
export const list = (names) => words.format(names);

const part = (amount, unit) =>
  new Intl.NumberFormat(locale, { style: "unit", unit, unitDisplay: "long" }).format(amount);

/** How long: 90 reads "1 minute 30 seconds", 90000 reads "1 day 1 hour". */
export function duration(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const parts = [
    [Math.floor(whole / 86_400), "day"],
    [Math.floor(whole / 3600) % 24, "hour"],
    [Math.floor(whole / 60) % 60, "minute"],
    [whole % 60, "second"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return part(0, "second");
  const shown = parts.slice(first, first + 2).filter(([amount]) => amount > 0);
  return shown.map(([amount, unit]) => part(amount, unit)).join(" ");
}

/** Seconds as a clock face: 119.2 reads 2:00, for a second that has begun is still there. */
export function clockFace(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const minutes = Math.floor(whole / 60);
  return `${minutes}:${String(whole % 60).padStart(2, "0")}`;
}

// ---- names of what is sold

/** A seat as people find it: "Stalls, row C, seat 12"; a seat without these names by its id. */
export function seatName({ id, row, number, section }) {
  if (row == null && number == null) return section ? `${section}, ${texts.seat(id)}` : texts.seat(id);
  return [section, row != null && texts.row(row), number != null && texts.seat(number)].filter(Boolean).join(", ");
}

/** What a booking has, for one sentence. */
export function contents({ seats, pools }) {
  return list([...seats.map(seatName), ...pools.map(({ id, units }) => texts.units(units, id))]);
}
