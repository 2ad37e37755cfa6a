// Chooses the words, and writes money as the language does.

import de from "../texts/seat-map-de.js";
import en from "../texts/seat-map-en.js";

const TEXTS = { de, en };

/** `{texts, locale}` for the first of these language tags that has a file; English otherwise. */
export function chooseTexts(...tags) {
  const locale = tags.find((tag) => tag && TEXTS[tag.toLowerCase().split("-")[0]]);
  return { texts: TEXTS[(locale ?? "en").toLowerCase().split("-")[0]], locale: locale ?? "en" };
}

/** Writes minor units as money: 4500 of EUR reads €45.00. */
export function moneyWriter(locale, currency) {
  const format = new Intl.NumberFormat(locale, { style: "currency", currency });
  const digits = format.resolvedOptions().maximumFractionDigits;
  const whole = new Intl.NumberFormat(locale, { style: "currency", currency, maximumFractionDigits: 0 });
  return {
    exact: (amount) => format.format(amount / 10 ** digits),
    /** Without cents where there are none. */
    short: (amount) => (amount % 10 ** digits === 0 ? whole : format).format(amount / 10 ** digits),
  };
}
