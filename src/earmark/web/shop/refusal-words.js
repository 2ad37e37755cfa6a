// What went wrong, in the buyer's language, and what the buyer can do now.

import { Unreachable } from "../api.js";
import { texts } from "./language.js";

/** A sentence for any error of a request; the server's own English one where this page has none for its code. */
export function wordsFor(error) {
  if (error instanceof Unreachable) return navigator.onLine ? texts.unreachable : texts.offline;
  if (error.status === 401) return texts.signedOut;
  const words = texts.refusals[error.code];
  if (words) return words(error.facts);
  return error.status >= 500 ? texts.somethingWrong : error.message;
}
