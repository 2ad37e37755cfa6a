// The console: first what needs the operator, then the figures. The server decides what is wrong; this page shows it.

import { byId, el } from "./dom.js";
import * as api from "./ops-api.js";
import * as cards from "./ops-cards.js";
import { explain } from "./ops-explain-booking-or-seat.js";
import { Poller } from "./poller.js";
import { age, count } from "./format.js";

const POLL_SECONDS = 4;
const NEWS_MS = 10_000;
const REFUSED = {
  401: "This server does not know that key. Was it copied completely, and is it a key of this server?",
  403: "This key may not open the console: it lacks the scope ops. Create another: earmark keys create … --scope ops",
};

let seen = null; // the server's last response
let before = null; // and before that, for rates
let seenAt = 0;

const poller = new Poller({ ask: refresh, seconds: POLL_SECONDS, onLink: showLink });

// ---- requests

async function refresh(signal) {
  try {
    const answer = await api.readState(signal);
    if (signal.aborted) return;
    [before, seen, seenAt] = [seen, answer, Date.now()];
    if (byId("notice").dataset.outage) hideNotice();
    show();
  } catch (error) {
    if (!signal.aborted) await refuse(error);
    throw error;
  }
}

async function refuse(error) {
  if (REFUSED[error.status]) return askForKey(REFUSED[error.status]);
  const advice =
    error.status === 503
      ? "The database does not answer, so bookings fail. Check whether it runs, and see: earmark doctor"
      : error.message;
  byId("notice").dataset.outage = true;
  notify("bad", advice + (seen ? ` The figures below are from ${new Date(seenAt).toLocaleTimeString()}.` : ""));
  if (!(await api.isReady())) cards.showUnready();
}

function askForKey(why) {
  poller.stop();
  api.forgetKey();
  seen = before = null;
  byId("board").hidden = byId("status").hidden = true;
  byId("entry").hidden = false;
  byId("entry-key").value = "";
  document.title = "Console · Earmark";
  if (why) notify("warning", why);
  byId("entry-key").focus();
}

function open() {
  byId("entry").hidden = true;
  byId("status").hidden = false;
  poller.now();
}

// ---- showing

function show() {
  byId("board").hidden = false;
  byId("kind").textContent = seen.mode === "live" ? "Live" : "Test";
  byId("kind").dataset.kind = seen.mode;
  byId("kind").title = "The mode of your key: payments, holds and webhooks are of this mode alone.";
  byId("foot").textContent = `Earmark ${seen.version}. Asked every ${POLL_SECONDS} seconds while you look.`;
  document.title = (seen.needs.length ? `(${cards.needed(seen.needs)}) ` : "") + "Console · Earmark";
  cards.showAll(seen, before, { tellStory, breakLock: confirmBreak });
}

// Ages count up between two responses.
setInterval(() => {
  if (seen && !document.hidden) cards.tick(Date.parse(seen.now) + Date.now() - seenAt);
}, 1000);

function showLink(isUp) {
  byId("link").dataset.up = isUp;
  byId("link").textContent = isUp ? "Up to date" : seen ? `No answer for ${age((Date.now() - seenAt) / 1000)}` : "No answer";
  if (byId("entry").hidden) byId("board").classList.toggle("stale", !isUp);
}

function notify(kind, words) {
  byId("notice").dataset.kind = kind;
  byId("notice-text").textContent = words;
  byId("notice").hidden = false;
}

function hideNotice() {
  byId("notice").hidden = true;
  delete byId("notice").dataset.outage;
}

// ---- what an operator does

let toBreak = null;

function confirmBreak(lock) {
  toBreak = lock;
  byId("break-key").textContent = lock.key;
  byId("break-holder").textContent = lock.holder;
  byId("break-others").textContent = lock.waiting ? count(lock.waiting, "waiter") : "no waiters";
  byId("break").returnValue = "leave";
  byId("break").showModal();
}

async function breakLock() {
  if (byId("break").returnValue !== "break") return;
  const { key, holder } = toBreak;
  try {
    await api.breakLock(key);
    byId("aloud").textContent = `The lock ${key} was taken from ${holder}.`;
    await poller.now();
    notify("good", `The lock ${key} was taken from ${holder}.`);
    setTimeout(hideNotice, NEWS_MS);
  } catch (error) {
    await poller.now();
    notify("bad", error.status === 404 ? `The lock ${key} is no longer held: there was nothing to break.` : error.message);
  }
}

function tellStory(what) {
  byId("explain-what").value = what;
  byId("explain").requestSubmit();
  byId("explain-name").scrollIntoView({ block: "start" });
}

async function submitExplain(submit) {
  submit.preventDefault();
  const what = byId("explain-what").value.trim();
  byId("story").replaceChildren(el("p", { class: "quiet" }, "One moment…"));
  byId("story").replaceChildren(...(await explain(what, { tellStory, kind: seen?.mode ?? "test" })));
}

// ---- wiring

byId("entry").addEventListener("submit", (submit) => {
  submit.preventDefault();
  api.rememberKey(byId("entry-key").value);
  hideNotice();
  open();
});
byId("forget").addEventListener("click", () => {
  hideNotice();
  askForKey(null);
});
byId("break").addEventListener("close", breakLock);
byId("explain").addEventListener("submit", submitExplain);

if (api.hasKey()) open();
else askForKey(null);
