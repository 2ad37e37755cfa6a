// The cards of the console, rendered from the server's response. A card that has not changed is left as it is.

import { byId, el, inline } from "./dom.js";
import { age, count, list, money } from "./format.js";

const MANY = 10_000; // the server counts no further
const PARTS = { server: "Server", database: "Database", locks: "Locks", admission: "Admission" };
const HEALTH = {
  well: "well",
  failing: "fails",
  silent: "no heartbeat",
  disabled: "disabled",
  off: "switched off",
};

// ---- what they share

const number = (value) => (value >= MANY ? "10,000+" : value.toLocaleString("en"));

let clock = 0; // the server's time at its last answer

/** An age that counts up, stored as the moment when it began; `until` counts down to a moment. */
const since = (seconds) => el("span", { class: "age", "data-from": clock - 1000 * seconds }, age(seconds));
const until = (seconds) => el("span", { class: "age", "data-to": clock + 1000 * seconds }, age(seconds));

/** Updates all ages; `now` is the server's time. */
export function tick(now) {
  for (const node of document.querySelectorAll(".age")) {
    const { from, to } = node.dataset;
    node.textContent = age((to ? Number(to) - now : now - Number(from)) / 1000);
  }
}

/** Renders again only when something differs, so that a button in use keeps its focus and a selection stays. */
function render(node, facts, nodes) {
  const rendered = JSON.stringify(facts);
  if (node.dataset.rendered === rendered) return false;
  node.dataset.rendered = rendered;
  node.replaceChildren(...nodes());
  return true;
}

function table(node, heads, rows) {
  node.hidden = rows.length === 0;
  if (node.hidden) return node.replaceChildren();
  const head = el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name))));
  const cells = (row) => row.cells.map((cell, place) => el("td", { "data-name": heads[place] }, isEmpty(cell) ? null : el("div", {}, cell)));
  const line = (row) => el("tr", { ...row.attributes }, cells(row));
  return node.replaceChildren(head, el("tbody", {}, rows.map(line)));
}

const isEmpty = (cell) => cell === "" || cell === null;

const mark = (health) => el("span", { class: "mark", "data-health": health }, HEALTH[health] ?? health);

/** Shows all cards. Ages are counted by the server's clock. */
export function showAll(seen, before, { tellStory, breakLock }) {
  clock = Date.parse(seen.now);
  showNeeds(seen);
  showFigures(seen);
  showPayments(seen, tellStory);
  showWorkers(seen);
  showQueues(seen, before);
  showWebhooks(seen);
  showLocks(seen, breakLock);
  tick(clock);
}

// ---- what needs the operator

/** How many things need the operator. */
export const needed = (needs) => needs.reduce((sum, need) => sum + need.count, 0);

function showNeeds({ needs, parts }) {
  byId("needs").dataset.well = needs.length === 0;
  const things = needed(needs);
  const many = things === 1 ? "One thing needs you." : `${number(things)} things need you.`;
  byId("needs-name").textContent = things ? many : "Nothing needs you.";
  byId("needs-good").textContent = needs.length ? "" : "All workers are running, nothing is late, and no payment needs review.";
  render(byId("needs-list"), needs, () =>
    needs.map(({ area, said, what_to_do }) =>
      el("li", { "data-area": area }, el("strong", {}, said), el("span", {}, inline(what_to_do))),
    ),
  );
  render(byId("parts"), parts, () =>
    parts.map(({ name, up, said }) => el("li", { "data-up": `${up}`, title: said }, `${PARTS[name]}${up ? "" : ": down"}`)),
  );
}

/** The server is not ready. */
export function showUnready() {
  delete byId("parts").dataset.rendered;
  byId("parts").replaceChildren(el("li", { "data-up": "false" }, "Not ready: no bookings are taken"));
}

// ---- the figures

function showFigures({ payments, holds, relay, webhooks, queues, locks }) {
  const waiting = queues.reduce((sum, queue) => sum + queue.waiting, 0);
  const flying = queues.reduce((sum, queue) => sum + queue.in_flight, 0);
  const ended = holds.expired.swept + holds.expired.met + holds.expired.made_room;
  const figures = [
    {
      name: "Payments needing review",
      value: number(payments.attention),
      note: payments.attention ? "listed below" : "none is stuck",
      bad: payments.attention > 0,
    },
    {
      name: "Open payments",
      value: number(payments.open),
      note: payments.open ? ["oldest ", since(payments.open_oldest_seconds)] : "all decided",
      bad: payments.open_oldest_seconds > 3600,
    },
    {
      name: "Held now",
      value: number(holds.held),
      note: holds.next_in_seconds === null ? "no holds" : ["next ends in ", until(holds.next_in_seconds)],
    },
    {
      name: "Due, not ended",
      value: number(holds.due),
      note: holds.due ? ["for ", since(holds.due_seconds)] : `${number(ended)} ended so far`,
      bad: holds.due_seconds > 60,
    },
    {
      name: "Entries for the relay",
      value: number(relay.unsent),
      note: relay.unsent ? ["oldest ", since(relay.oldest_seconds)] : "all numbered",
      bad: relay.oldest_seconds > 60,
    },
    {
      name: "Deliveries waiting",
      value: number(webhooks.pending),
      note: webhooks.late_seconds ? ["late by ", since(webhooks.late_seconds)] : count(webhooks.known, "webhook"),
      bad: webhooks.late_seconds > 60,
    },
    { name: "Requests queued", value: number(waiting), note: `${count(flying, "batch").replace(/hs$/, "hes")} under way` },
    {
      name: "Locks held",
      value: locks.up ? `${number(locks.listed.length)}${locks.more ? "+" : ""}` : "–",
      note: locks.configured ? (locks.up ? "on Redis" : "Redis does not answer") : "no Redis here",
      bad: locks.configured && !locks.up,
    },
  ];
  byId("figures").replaceChildren(
    ...figures.map(({ name, value, note = "", bad = false }) =>
      el(
        "li",
        { "data-bad": `${bad}`, "data-figure": name },
        el("span", { class: "name" }, name),
        el("strong", {}, value),
        el("span", { class: "quiet small" }, note || "\u00a0"),
      ),
    ),
  );
}

// ---- money

function showPayments({ payments }, tellStory) {
  const { attention, cases } = payments;
  const rest = attention - cases.length;
  byId("payments-note").textContent = attention
    ? (rest > 0 ? `The oldest ${cases.length} of ${number(attention)}. All of them: earmark payments attention` : "")
    : "None. Open payments are completed automatically.";
  render(byId("cases"), cases, () => cases.map((one) => showCase(one, tellStory)));
}

function showCase(one, tellStory) {
  const { amount, currency } = one.amount;
  const refused = one.refused.map(
    (refund) => `A refund of ${money(refund.amount, currency)} was refused${refund.code ? `: ${refund.code}` : ""}.`,
  );
  // A code that a refused refund shows already is not repeated.
  const reason = one.refused.some((refund) => refund.code === one.code) ? [one.message] : [one.code, one.message];
  const why = [...refused, reason.filter(Boolean).join(": ")].filter(Boolean);
  return el(
    "li",
    { class: "case", "data-payment": one.payment_id },
    el(
      "header",
      {},
      el("strong", { class: "sum" }, money(amount, currency)),
      el("span", {}, `${money(one.captured, currency)} taken, ${money(one.refunded, currency)} given back`),
      el("span", { class: "quiet" }, "for ", since((clock - Date.parse(one.since)) / 1000)),
    ),
    el("p", {}, why.join(" ") || "The gateway gave no reason."),
    el("p", { class: "todo" }, one.what_to_do),
    el(
      "dl",
      { class: "ids" },
      [
        ["payment", one.payment_id],
        ["booking", `${one.booking_id} (${one.booking_state})`],
        ["event", one.event_id],
        ["gateway", `${one.gateway} ${one.gateway_id ?? "(unknown there)"}`],
      ].map(([name, value]) => [el("dt", {}, name), el("dd", {}, el("code", {}, value))]),
    ),
    el("ul", { class: "commands" }, one.commands.map(command)),
    el("button", { type: "button", class: "plain", click: () => tellStory(one.booking_id) }, "Show its history below"),
  );
}

function command(text) {
  const code = el("code", {}, text);
  const copy = el("button", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // without access to the clipboard, the operator copies it
      copy.textContent = "Press Ctrl+C";
    }
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  });
  return el("li", {}, code, copy);
}

// ---- workers

function showWorkers({ workers, roles_missing: missing, version }) {
  const hosts = new Set(workers.map(({ host }) => host)).size;
  byId("workers-note").textContent = workers.length
    ? `${count(workers.length, "role")} on ${count(hosts, "host")}.`
    : "No worker has reported. Start one: earmark worker";
  const absent = missing.map((role) => ({
    attributes: { class: "bad" },
    cells: [el("strong", {}, role), "not running", mark("missing"), "", "", ""],
  }));
  const reported = workers.map((one) => ({
    attributes: { class: one.health === "well" ? "" : "bad" },
    cells: [
      el("strong", {}, one.role),
      [el("span", { title: `process ${one.process_id}` }, one.host), one.version !== version && ` (${one.version})`],
      mark(one.health),
      [since(one.age_seconds), " ago"],
      el("span", { title: one.because ?? "" }, one.outcome),
      one.rounds.toLocaleString("en"),
    ],
  }));
  table(byId("workers"), ["Role", "Host", "Status", "Last heartbeat", "Last round", "Rounds"], [...absent, ...reported]);
}

// ---- queues

function showQueues({ queues, now }, before) {
  const then = new Map((before?.queues ?? []).map((queue) => [queue.verb, queue]));
  const seconds = before ? (Date.parse(now) - Date.parse(before.now)) / 1000 : 0;
  const rows = queues.map((queue) => {
    const grown = (name) => queue[name] - (then.get(queue.verb)?.[name] ?? queue[name]);
    const rate = seconds > 0 && grown("requests") >= 0 ? grown("requests") / seconds : 0;
    const fresh = grown("batches") > 0;
    const size = fresh ? grown("requests") / grown("batches") : queue.batches ? queue.requests / queue.batches : null;
    return {
      cells: [
        el("strong", {}, queue.verb),
        number(queue.waiting),
        number(queue.in_flight),
        `${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en")} /s`,
        size === null ? "–" : el("span", { title: fresh ? "of the last seconds" : "of all time" }, size.toFixed(1)),
        queue.requests.toLocaleString("en"),
      ],
    };
  });
  table(byId("queues"), ["Verb", "Waiting", "In flight", "Rate", "Batch size", "Total"], rows);
}

// ---- webhooks

function showWebhooks({ webhooks }) {
  const { known, listed } = webhooks;
  const quiet = known - listed.length;
  byId("webhooks-note").textContent = known
    ? quiet > 0
      ? `${count(quiet, "webhook")} of ${known} without pending deliveries or failures.`
      : ""
    : "No webhooks.";
  const rows = listed.map((one) => ({
    attributes: { class: ["failing", "disabled"].includes(one.health) ? "bad" : "" },
    cells: [
      el("strong", { title: one.id }, one.host),
      [mark(one.health), one.health === "disabled" && ` ${one.disabled_because}`],
      number(one.pending),
      one.late_seconds ? since(one.late_seconds) : "–",
    ],
  }));
  table(byId("webhooks"), ["Host", "Status", "Pending", "Late"], rows);
}

// ---- locks

function showLocks({ locks }, breakLock) {
  const { configured, up, more, listed } = locks;
  byId("locks-note").textContent = !configured
    ? "No Redis is set up here, so there are no locks to see."
    : !up
      ? "The Redis of the locks does not answer: the holders are unknown."
      : more
        ? `The first ${listed.length}. All of them: earmark locks list`
        : listed.length
          ? ""
          : "No lock is held.";
  const facts = listed.map(({ key, holder, fence, waiters, waiting }) => [key, holder, fence, waiters, waiting]);
  render(byId("locks"), facts, () => {
    table(byId("locks"), ["Key", "Held by", "For", "Ends in", "Waiting", ""], listed.map((lock) => lockRow(lock, breakLock)));
    return byId("locks").childNodes;
  });
  byId("locks").hidden = listed.length === 0;
  // A lock that is renewed is the same lock: only its end moves.
  for (const { key, age_seconds, ttl_seconds } of listed) {
    const row = [...byId("locks").rows].find((one) => one.dataset.lock === key);
    const [held, ends] = row?.querySelectorAll(".age") ?? [];
    if (held) held.dataset.from = clock - 1000 * age_seconds;
    if (ends) ends.dataset.to = clock + 1000 * ttl_seconds;
  }
}

function lockRow(lock, breakLock) {
  const rest = lock.waiting - lock.waiters.length;
  const waiters = list([...lock.waiters, ...(rest > 0 ? [`${rest} more`] : [])]);
  const press = el("button", { type: "button", "aria-label": `Break the lock ${lock.key}` }, "Break…");
  press.addEventListener("click", () => breakLock(lock));
  return {
    attributes: { "data-lock": lock.key },
    cells: [
      el("code", {}, lock.key),
      [lock.holder, lock.fence !== null && el("span", { class: "quiet small" }, ` fence ${lock.fence}`)],
      since(lock.age_seconds),
      until(lock.ttl_seconds),
      lock.waiting ? [el("strong", {}, lock.waiting), ` ${waiters}`] : "none",
      press,
    ],
  };
}
