// The console: what needs a person first, then the figures. The server judges what is wrong; this shows it.

import { byId, el } from "./dom.js";
import * as api from "./ops-api.js";
import * as cards from "./ops-cards.js";
import { explain } from "./ops-story.js";
import { Poller } from "./poller.js";
import { age, count } from "./text.js";

const POLL_SECONDS = 4;
const NEWS_MS = 10_000;
const REFUSED = {
  401: "This server does not know that key. Was it copied whole, and is it a key of this server?",
  403: "This key may not look here: it lacks the scope ops. Its owner can make another: earmark keys create … --scope ops",
};

let seen = null; // what the server last told
let before = null; // and before that, for rates
let seenAt = 0;

const poller = new Poller({ ask: refresh, seconds: POLL_SECONDS, onLink: showLink });

// ---- asking

async function refresh(signal) {
  try {
    const told = await api.look(signal);
    if (signal.aborted) return;
    [before, seen, seenAt] = [seen, told, Date.now()];
    if (byId("notice").dataset.outage) hush();
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
      ? "The database does not answer, so nobody can book. See whether it runs, and ask: earmark doctor"
      : error.message;
  byId("notice").dataset.outage = true;
  tell("bad", advice + (seen ? ` What stands below is from ${new Date(seenAt).toLocaleTimeString()}.` : ""));
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
  if (why) tell("warning", why);
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

// Ages go on between two answers.
setInterval(() => {
  if (seen && !document.hidden) cards.tick(Date.parse(seen.now) + Date.now() - seenAt);
}, 1000);

function showLink(isUp) {
  byId("link").dataset.up = isUp;
  byId("link").textContent = isUp ? "Up to date" : seen ? `Silent for ${age((Date.now() - seenAt) / 1000)}` : "No answer";
  if (byId("entry").hidden) byId("board").classList.toggle("stale", !isUp);
}

function tell(kind, words) {
  byId("notice").dataset.kind = kind;
  byId("notice-text").textContent = words;
  byId("notice").hidden = false;
}

function hush() {
  byId("notice").hidden = true;
  delete byId("notice").dataset.outage;
}

// ---- what an operator does

let toBreak = null;

function confirmBreak(lock) {
  toBreak = lock;
  byId("break-key").textContent = lock.key;
  byId("break-holder").textContent = lock.holder;
  byId("break-others").textContent = lock.waiting ? count(lock.waiting, "other") : "nobody";
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
    tell("good", `The lock ${key} was taken from ${holder}.`);
    setTimeout(hush, NEWS_MS);
  } catch (error) {
    await poller.now();
    tell("bad", error.status === 404 ? `Nobody holds ${key} any more: there was nothing to break.` : error.message);
  }
}

function tellStory(what) {
  byId("explain-what").value = what;
  byId("explain").requestSubmit();
  byId("explain-name").scrollIntoView({ block: "start" });
}

async function answerStory(submit) {
  submit.preventDefault();
  const what = byId("explain-what").value.trim();
  byId("story").replaceChildren(el("p", { class: "quiet" }, "One moment…"));
  byId("story").replaceChildren(...(await explain(what, { tellStory, kind: seen?.mode ?? "test" })));
}

// ---- wiring

byId("entry").addEventListener("submit", (submit) => {
  submit.preventDefault();
  api.rememberKey(byId("entry-key").value);
  hush();
  open();
});
byId("forget").addEventListener("click", () => {
  hush();
  askForKey(null);
});
byId("break").addEventListener("close", breakLock);
byId("explain").addEventListener("submit", answerStory);

if (api.hasKey()) open();
else askForKey(null);
