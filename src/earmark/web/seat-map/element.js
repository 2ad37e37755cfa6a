// <earmark-seat-map>: shows the seats of an event, lets a buyer choose, and reports it. It holds nothing by itself.
// Attributes, properties, methods, events and custom properties: docs/howto/seat-map-element.md.

import { Choice } from "./choice.js";
import { chooseTexts, moneyWriter } from "./language.js";
import { MapSource } from "./map-source.js";
import { Screen } from "./screen.js";
import { SeatModel } from "./seat-model.js";
import { styles } from "./styles.js";

const DEFAULT_SERVER = new URL("../..", import.meta.url).href;
const BUILT_ANEW = new Set(["lang"]);
const STARTED_ANEW = new Set(["event", "server"]);

export class EarmarkSeatMap extends HTMLElement {
  static observedAttributes = ["event", "server", "lang", "view", "theme"];

  #model = new SeatModel();
  #choice = null;
  #screen = null;
  #texts = null;
  #locale = null;
  #money = null;
  #source = null;
  #token = null;
  #event = null;
  #link = "connecting";
  #ownLines = [];
  #available = null; // free seats and units, as the page was told
  #planMs = null; // how long the newest plan took, from its text to its picture
  #wanted = null; // a selection that the page gave before the seats were known
  #sizes = new ResizeObserver(() => this.#screen?.resize());
  #dark = matchMedia("(prefers-color-scheme: dark)");
  #onScheme = () => this.#isShown && this.#screen.readTheme();

  constructor() {
    super();
    this.attachShadow({ mode: "open" });
    this.shadowRoot.adoptedStyleSheets = [styles];
  }

  connectedCallback() {
    for (const name of ["token", "selection", "ownBooking"]) this.#takeEarly(name);
    this.#build();
    this.#dark.addEventListener("change", this.#onScheme);
    this.#start();
  }

  disconnectedCallback() {
    this.#source?.stop();
    this.#sizes.disconnect();
    this.#dark.removeEventListener("change", this.#onScheme);
  }

  attributeChangedCallback(name, before, now) {
    if (!this.isConnected || !this.#screen || before === now) return;
    if (BUILT_ANEW.has(name)) this.#build();
    if (STARTED_ANEW.has(name)) this.#start();
    if (name === "view") this.#screen.setView(this.view);
    if (name === "theme") this.#onScheme();
  }

  // What the page set before this module was there hides the property of the same name.
  #takeEarly(name) {
    if (!Object.hasOwn(this, name)) return;
    const value = this[name];
    delete this[name];
    this[name] = value;
  }

  // ---- what the page sets

  /** The buyer's token; without one the browser's own guest cookie counts, on the server's own site. */
  get token() {
    return this.#token;
  }

  set token(token) {
    if (token === this.#token) return;
    this.#token = token || null;
    if (this.isConnected && this.#screen) this.#start();
  }

  get server() {
    return new URL(this.getAttribute("server") || DEFAULT_SERVER, location.href).href.replace(/\/$/, "");
  }

  get view() {
    return this.getAttribute("view") === "list" ? "list" : "map";
  }

  get maxSelected() {
    const most = Number(this.getAttribute("max-selected") ?? this.#event?.per_buyer_max);
    return most > 0 ? most : Infinity;
  }

  get holdsEachSeat() {
    return this.hasAttribute("holds-each-seat");
  }

  /** `{seats: [ids], pools: {id: units}}`. */
  get selection() {
    return this.#choice?.selection ?? { seats: [], pools: {} };
  }

  set selection(selection) {
    if (this.#model.count || this.#model.pools.size) this.#choice.setSelection(selection);
    else this.#wanted = selection;
  }

  /** Lines of the buyer's bookings: seats shown as held for this buyer, whatever the map says. */
  get ownBooking() {
    return this.#ownLines;
  }

  set ownBooking(lines) {
    this.#ownLines = [...(lines ?? [])];
    const changed = this.#model.own(this.#ownLines.map((line) => line.id ?? line));
    if (changed.length) this.#screen?.update(changed);
  }

  /** Units of pools that are held for the buyer, `{pool id: units}`: the counters begin there. */
  set ownUnits(units) {
    this.#model.ownUnits(units ?? {});
    this.#screen?.update([]);
  }

  // ---- what the page calls

  /** What the page's request for a seat led to: "held", "free" or "taken". */
  setHoldResult(seatId, result) {
    this.#choice.setHoldResult(seatId, result);
  }

  /** Shows a section by its name; the whole map without one. */
  showSection(name) {
    this.#screen.goTo(this.#model.plan.sections.findIndex((section) => section.name === name));
  }

  /** Brings a seat into view and gives it the focus. */
  focusSeat(seatId) {
    const at = this.#model.placeOf(seatId);
    if (at >= 0) this.#screen.grid.focusSeat(at);
  }

  /** A seat as events describe it, with its label; null if there is none. */
  seat(seatId) {
    const at = this.#model.placeOf(seatId);
    return at < 0 ? null : { ...this.#choice.describe(at), label: this.#choice.label(at) };
  }

  /** Where the middle of a seat is in the window, for hints of the page; null if there is none. */
  seatPoint(seatId) {
    const at = this.#model.placeOf(seatId);
    if (at < 0) return null;
    const [box, pixel] = [this.#screen.nodes.map.getBoundingClientRect(), this.#screen.map.pixelOf(at)];
    return { x: box.left + pixel.x, y: box.top + pixel.y };
  }

  /** How large a seat is now, in pixels, and what was drawn: for measuring. */
  get drawing() {
    const { map } = this.#screen;
    const { isSimple, counts } = map.renderer;
    const { showsSeats, isWhole } = map;
    return { seatPx: map.camera.scale, showsSeats, isWhole, isSimple, planMs: this.#planMs, ...counts };
  }

  get isLive() {
    return this.#link === "live";
  }

  // ---- building

  get #isShown() {
    return this.#screen && this.#event && (this.#model.count > 0 || this.#model.pools.size > 0);
  }

  #build() {
    const tags = [this.getAttribute("lang"), this.closest("[lang]")?.lang, document.documentElement.lang];
    const { texts, locale } = chooseTexts(...tags, ...navigator.languages);
    [this.#texts, this.#locale] = [texts, locale];
    this.#nameMoney();
    this.#choice = new Choice(this.#model, this.#forChoice());
    const choice = this.#choice;
    this.#screen = new Screen({
      host: this,
      model: this.#model,
      texts,
      does: {
        toggle: (at) => choice.toggle(at),
        canToggle: (at) => choice.canToggle(at),
        label: (at) => choice.label(at),
        tip: (at) => choice.tip(at),
        pickBest: (wish) => choice.pickBest(wish),
        setUnits: (id, units) => choice.setUnits(id, units),
        money: () => this.#money,
        countMax: () => this.maxSelected,
        show: (view) => this.setAttribute("view", view),
      },
    });
    this.shadowRoot.replaceChildren(this.#screen.node);
    this.#sizes.disconnect();
    this.#sizes.observe(this.#screen.nodes.map);
    this.#screen.setView(this.view);
    this.#screen.showLink(this.#link);
    if (this.#isShown) this.#screen.renderAll();
  }

  // What decides about seats has no other way to the element than this.
  #forChoice() {
    const element = this;
    return {
      dispatch: (...args) => element.#dispatch(...args),
      get maxSelected() {
        return element.maxSelected;
      },
      get holdsEachSeat() {
        return element.holdsEachSeat;
      },
      get screen() {
        return element.#screen;
      },
      get texts() {
        return element.#texts;
      },
      get money() {
        return element.#money;
      },
    };
  }

  #nameMoney() {
    this.#money = moneyWriter(this.#locale, this.#event?.currency ?? "EUR");
  }

  // ---- following the event

  #start() {
    this.#source?.stop();
    const eventId = this.getAttribute("event");
    if (this.#event && this.#event.id !== eventId) this.#forget();
    // On another site there is no cookie: nothing is asked before the token is there.
    const isHome = new URL(this.server).origin === location.origin;
    if (!eventId || !(this.#token || isHome)) return;
    this.#source = new MapSource({
      server: this.server,
      eventId,
      token: () => this.#token,
      onEvent: (event) => this.#takeEvent(event),
      onMap: (map, began) => this.#takeMap(map, began),
      onChange: (change) => this.#takeChange(change),
      onLink: (link) => this.#takeLink(link),
      onRefusal: (error) => this.#takeRefusal(error),
    });
    this.#source.start();
  }

  // Another event may have seats of the same names.
  #forget() {
    this.#event = null;
    this.#model = new SeatModel();
    this.ownBooking = this.#ownLines;
    this.#build();
  }

  #takeEvent(event) {
    this.#event = event;
    this.#nameMoney();
  }

  #takeMap(map, began) {
    const { isNewPlan, changed, lost } = this.#model.replace(map);
    const isFirst = !this.#screen.nodes.state.hidden;
    if (isNewPlan || isFirst) {
      this.#screen.renderAll();
      this.#planMs = performance.now() - began;
    } else {
      this.#screen.update(changed);
    }
    this.#choice.lose(lost);
    if (this.#wanted) this.#choice.setSelection(this.#wanted);
    this.#wanted = null;
    this.#tellAvailability();
  }

  #takeChange(change) {
    const { changed, lost } = this.#model.apply(change);
    this.#screen.update(changed);
    this.#choice.lose(lost);
    this.#tellAvailability();
  }

  #tellAvailability() {
    const { seats, units } = this.#model.available;
    if (this.#available?.seats === seats && this.#available.units === units) return;
    this.#available = { seats, units };
    this.#dispatch("earmark-availability", this.#available);
  }

  #takeLink(link) {
    const wasLive = this.isLive;
    if (link === this.#link) return;
    this.#link = link;
    this.#screen.showLink(link);
    if (wasLive !== this.isLive) this.#dispatch("earmark-live", { isLive: this.isLive });
  }

  #takeRefusal(error) {
    const words = this.#texts.refused[error.status] ?? this.#texts.refused.other;
    this.#screen.showLink("lost");
    this.#screen.showRefusal(words);
    this.#dispatch("earmark-error", { status: error.status ?? null, message: error.message });
  }

  /** Tells the page; false if it prevented the default. */
  #dispatch(name, detail, isCancelable = false) {
    const event = new CustomEvent(name, { detail, bubbles: true, composed: true, cancelable: isCancelable });
    return this.dispatchEvent(event);
  }
}
