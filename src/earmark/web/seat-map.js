// The seat map as SVG: rendered once, then only what changed; usable by mouse, touch and keyboard, and without colour.

import { svg } from "./dom.js";
import { PITCH, layOut, numberOf, rowOf } from "./seat-positions.js";

const SEAT = 28;
const LABEL = 28; // from the last seat's middle to its row's name
const PRICE = 46; // from there to what the row costs

const CLOCK = "M0 -6.5a6.5 6.5 0 1 1 -.01 0M0 -3V.5L2.5 2";
const STAR = "M0 -7L2 -2.2L7 -2L3 1.4L4.4 6.5L0 3.6L-4.4 6.5L-3 1.4L-7 -2L-2 -2.2Z";

/** The symbol and the text of each state. "mine" and "owned" are held and booked seats of this buyer. */
export const STATES = {
  available: { glyph: "", words: "available" },
  selected: { glyph: "M-5 .5L-1.5 4L5.5 -4", words: "selected" },
  mine: { glyph: CLOCK, words: "on hold for you" },
  owned: { glyph: STAR, words: "yours" },
  held: { glyph: CLOCK, words: "on hold for another buyer" },
  booked: { glyph: "M-4 -4L4 4M4 -4L-4 4", words: "sold" },
  blocked: { glyph: "M-5 0H5", words: "not for sale" },
};

/** The symbol of a seat, on the map and in the legend. */
export function seatPicture(state, label = "") {
  return [
    svg("rect", { x: -SEAT / 2, y: -SEAT / 2, width: SEAT, height: SEAT, rx: 7 }),
    svg("text", { y: 4 }, label),
    svg("path", { d: STATES[state].glyph }),
  ];
}

export class SeatMap {
  #places = new Map(); // seat id → {seat, node, row, column}
  #rows = [];
  #rendered = "";

  /** onToggle(id) when a seat is chosen; onPeek(seat or null) when one is pointed at. */
  constructor(root, { onToggle, onPeek, price }) {
    this.root = root;
    this.onToggle = onToggle;
    this.onPeek = onPeek;
    this.price = price;
    root.addEventListener("click", (event) => this.#choose(seatAt(event)));
    root.addEventListener("keydown", (event) => this.#onKey(event));
    root.addEventListener("focusin", (event) => this.#onFocus(seatAt(event)));
    root.addEventListener("pointerover", (event) => onPeek(seatAt(event)));
    root.addEventListener("pointerleave", () => onPeek(null));
  }

  /** Shows these seats; stateOf(seat) names the state to show. */
  update(seats, stateOf) {
    const ids = seats.map((seat) => seat.id).join("\n");
    if (ids !== this.#rendered) this.#render(seats);
    this.#rendered = ids;
    for (const seat of seats) this.#show(seat, stateOf(seat));
  }

  /** Lets a seat blink, because it has changed. */
  flash(ids) {
    for (const id of ids) {
      const node = this.#places.get(id)?.node;
      node?.classList.remove("flash");
      node?.getBoundingClientRect(); // without a layout in between, the animation would not start again
      node?.classList.add("flash");
    }
  }

  #show(seat, state) {
    const { node } = this.#places.get(seat.id);
    if (node.dataset.state === state) return;
    const open = state === "available" || state === "selected";
    node.dataset.state = state;
    node.setAttribute("aria-checked", state === "selected");
    node.setAttribute("aria-disabled", !open);
    node.setAttribute("aria-label", `${nameOf(seat)}, ${this.price(seat)}, ${STATES[state].words}`);
    node.querySelector("path").setAttribute("d", STATES[state].glyph);
  }

  // ---- rendering

  #render(seats) {
    const { rows, half, curve } = layOut(seats);
    this.#rows = rows;
    this.#places.clear();
    const groups = rows.map((row, index) => this.#drawRow(row, index));
    const front = half ? drawFront(half, curve(half)) : [];
    this.root.replaceChildren(...front, ...groups, ...this.#drawSigns({ half, curve }));
    fit(this.root);
    this.root.querySelector(".seat")?.setAttribute("tabindex", 0);
  }

  #drawRow(row, rowIndex) {
    const group = svg("g", { role: "group", "aria-label": row.label ? `Row ${row.label}` : null });
    row.seats.forEach(({ seat, x, y }, column) => {
      const node = svg(
        "g",
        { class: "seat", role: "checkbox", tabindex: -1, transform: `translate(${x} ${y})`, "data-seat": seat.id },
        ...seatPicture("available", numberOf(seat)),
      );
      this.#places.set(seat.id, { seat, node, row: rowIndex, column });
      group.append(node);
    });
    group.append(...rowNames(row));
    return group;
  }

  // One price per run of rows that cost the same, at its first row (a free layout has no room beside its rows);
  // a section's name is above its first row.
  #drawSigns({ half, curve }) {
    return this.#rows.flatMap((row, index) => {
      const before = this.#rows[index - 1];
      const [first, last] = [row.seats[0], row.seats.at(-1)];
      const isNewSection = row.section !== (before?.section ?? null);
      const isNewPrice = row.price !== (before?.price ?? null) || isNewSection;
      const signs = [];
      if (half && isNewPrice && row.price !== null)
        signs.push(svg("text", { class: "price", x: last.x + PRICE, y: last.y + 4 }, this.price(first.seat)));
      if (isNewSection && row.section !== null) {
        const y = first.y - curve(first.x) - 0.95 * PITCH;
        signs.push(svg("text", { class: "section", x: (first.x + last.x) / 2, y }, row.section));
      }
      return signs;
    });
  }

  // ---- keyboard

  #choose(node) {
    if (node && node.getAttribute("aria-disabled") !== "true") this.onToggle(node.dataset.seat);
  }

  // One seat of the map is in the tab order; the arrows move on from there.
  #onFocus(node) {
    if (!node) return;
    this.root.querySelector('.seat[tabindex="0"]')?.setAttribute("tabindex", -1);
    node.setAttribute("tabindex", 0);
    this.onPeek(node);
  }

  #onKey(event) {
    const node = seatAt(event);
    const go = MOVES[event.key];
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " || event.key === "Enter") this.#choose(node);
    else if (go) this.#places.get(go(this.#rows, this.#places.get(node.dataset.seat)))?.node.focus();
    else return;
    event.preventDefault();
  }
}

const nameOf = (seat) => (rowOf(seat) ? `Row ${rowOf(seat)} seat ${numberOf(seat)}` : `Seat ${seat.id}`);

const seatAt = (event) => event.target.closest?.(".seat") ?? null;

const MOVES = {
  ArrowLeft: (rows, { row, column }) => rows[row].seats[column - 1]?.seat.id,
  ArrowRight: (rows, { row, column }) => rows[row].seats[column + 1]?.seat.id,
  ArrowUp: (rows, place) => nearest(rows[place.row - 1], rows[place.row].seats[place.column].x),
  ArrowDown: (rows, place) => nearest(rows[place.row + 1], rows[place.row].seats[place.column].x),
  Home: (rows, { row }) => rows[row].seats[0].seat.id,
  End: (rows, { row }) => rows[row].seats.at(-1).seat.id,
};

function nearest(row, x) {
  const near = (one, other) => (Math.abs(other.x - x) < Math.abs(one.x - x) ? other : one);
  return row?.seats.reduce(near).seat.id;
}

function rowNames({ label, seats }) {
  const [first, last] = [seats[0], seats.at(-1)];
  const name = (x, y) => svg("text", { class: "row-name", "aria-hidden": "true", x, y: y + 4 }, label);
  return [name(first.x - LABEL, first.y), name(last.x + LABEL, last.y)];
}

// A band that bends as the rows do; a quadratic curve's control point lies as far below as its ends lie above.
function drawFront(half, rise) {
  const [from, to] = [-0.9 * half, 0.9 * half];
  const arc = (x, y) => `Q0 ${y - rise} ${x} ${y + rise}`;
  return [
    svg("path", { class: "front", d: `M${from} ${rise - 26}${arc(to, -26)}V${rise}${arc(from, 0)}Z` }),
    svg("text", { class: "front-name", y: -9 }, "Front"),
  ];
}

function fit(root) {
  const box = root.getBBox();
  const pad = 10;
  const width = Math.ceil(box.width + 2 * pad);
  root.setAttribute("viewBox", `${box.x - pad} ${box.y - pad} ${width} ${Math.ceil(box.height + 2 * pad)}`);
  root.style.setProperty("--map-width", `${width}px`);
}
