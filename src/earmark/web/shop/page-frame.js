// What the shop's pages have in common: language, who the buyer is, messages, and what happens while the network is away.

import * as api from "../api.js";
import { byId } from "../dom.js";
import { texts, translatePage } from "./language.js";
import { wordsFor } from "./refusal-words.js";

const RETRY_MS = 3000;
const RETRY_MS_MAX = 15_000;

/**
 * Runs a page: open() reads what it shows, again and again until the server answers. Back from an absence (offline, another
 * tab, the browser's "back"), refresh() reads it anew.
 */
export async function runPage({ open, refresh }) {
  api.takeKeyFromAddress();
  translatePage();
  listen();
  showOffice();
  const isIn = await untilAnswered(api.enter);
  if (!isIn) return askForKey();
  await untilAnswered(open);
  const again = () => document.hidden || refresh().catch((error) => notify("bad", wordsFor(error)));
  addEventListener("online", () => hideNotice("offline", again));
  addEventListener("pageshow", ({ persisted }) => persisted && again());
  document.addEventListener("visibilitychange", again);
}

async function untilAnswered(step) {
  for (let pause = RETRY_MS; ; pause = Math.min(RETRY_MS_MAX, 2 * pause)) {
    try {
      const answer = await step();
      hideNotice("offline");
      return answer;
    } catch (error) {
      if (!(error instanceof api.Unreachable) && !(error.status >= 500)) {
        notify("bad", wordsFor(error));
        throw error;
      }
      notify("offline", wordsFor(error));
    }
    await new Promise((wake) => {
      const timer = setTimeout(wake, pause);
      addEventListener("online", () => (clearTimeout(timer), wake()), { once: true });
    });
  }
}

function listen() {
  byId("notice-close").addEventListener("click", () => hideNotice());
  byId("office-forget").addEventListener("click", () => {
    api.forgetKey();
    showOffice();
  });
  byId("entry").addEventListener("submit", (submit) => {
    submit.preventDefault();
    api.rememberKey(byId("entry-key").value);
    location.reload();
  });
  addEventListener("offline", () => notify("offline", texts.offline));
  if (!navigator.onLine) notify("offline", texts.offline);
}

function askForKey() {
  byId("title").textContent = texts.keyTitle;
  byId("entry").hidden = false;
  return new Promise(() => {}); // the page is loaded anew with the key
}

function showOffice() {
  byId("office").hidden = api.officeKey() === null;
}

// ---- messages

/** Shows a message: "good", "warning", "bad" or "offline"; with an action `{words, act}` as a button, if there is one. */
export function notify(kind, words, action = null) {
  const [notice, button] = [byId("notice"), byId("notice-act")];
  notice.dataset.kind = kind;
  byId("notice-text").textContent = words;
  button.hidden = action === null;
  button.textContent = action?.words ?? "";
  button.onclick = () => {
    hideNotice();
    action.act();
  };
  notice.hidden = false;
}

/** Hides the message; only one of this kind, if a kind is named. */
export function hideNotice(kind = null, then = () => {}) {
  const notice = byId("notice");
  if (kind === null || notice.dataset.kind === kind) notice.hidden = true;
  then();
}

/** Says it to screen readers: calmly, or at once. */
export function say(words, { isUrgent = false } = {}) {
  byId(isUrgent ? "aloud-now" : "aloud").textContent = words;
}

/** What an error means to the buyer. */
export const notifyError = (error, action = null) =>
  notify(error instanceof api.Unreachable ? "offline" : "bad", wordsFor(error), action);
