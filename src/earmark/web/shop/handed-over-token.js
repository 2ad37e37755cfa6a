// A buyer's token that a page of another site handed over to the checkout of one booking, behind the # of the address. A link
// with such a token may be another person's, who would read what the buyer types and have the tickets: see `isTrusted`.

const PLACE = "earmark.handed-over.";

export class HandedOverToken {
  #place;
  #kept;

  /** Takes the token out of the address, where no copied link has it, and keeps it for this booking in this tab. */
  constructor(bookingId) {
    this.#place = PLACE + bookingId;
    this.#kept = JSON.parse(sessionStorage.getItem(this.#place));
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return;
    history.replaceState(null, "", location.pathname + location.search);
    if (bookingId && token !== this.value) this.#keep({ token, isTrusted: false });
  }

  /** The token, or null where none was handed over. */
  get value() {
    return this.#kept?.token ?? null;
  }

  /** Whether the buyer chose the seats themselves: a site of the operator's led here, or the buyer said so. */
  get isTrusted() {
    return this.#kept === null || this.#kept.isTrusted;
  }

  trust() {
    this.#keep({ ...this.#kept, isTrusted: true });
  }

  forget() {
    sessionStorage.removeItem(this.#place);
    this.#kept = null;
  }

  #keep(kept) {
    sessionStorage.setItem(this.#place, JSON.stringify(kept));
    this.#kept = kept;
  }
}

/** Whether a page of one of these sites led here. A page can hide that it did, and cannot claim to be another site's. */
export const isLedHereBy = (origins) => document.referrer !== "" && origins.includes(new URL(document.referrer).origin);
