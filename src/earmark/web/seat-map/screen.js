// What the element shows: puts its parts together, and passes on what the buyer does with them.

import { el } from "../dom.js";
import { AccessibleGrid } from "./accessible-grid.js";
import { BestAvailableForm } from "./best-available-form.js";
import { Gestures } from "./gestures.js";
import { assemble, buildLayout } from "./layout.js";
import { ListView } from "./list-view.js";
import { MapView } from "./map-view.js";
import { PoolCounters } from "./pool-counters.js";
import { PriceLegend, seatPicture, signList } from "./price-legend.js";
import { FILTERED } from "./seat-states.js";
import { readTheme } from "./theme.js";

const ZOOM_STEP = 1.6;
const TIP_OFFSET_PX = 14;
const PLAN_MARGIN_PX = 40;

export class Screen {
  #shown = ""; // the signs that are shown, as text
  #frame = 0;
  #tipped = -1; // the seat that the tip is about

  /**
   * does: {toggle(seat), canToggle(seat), label(seat), tip(seat), pickBest(wish), setUnits(pool, units), money(),
   * countMax(), show(view)}.
   */
  constructor({ host, model, texts, does }) {
    Object.assign(this, { host, model, texts, does });
    const isMac = /Mac|iP(hone|ad)/.test(navigator.platform);
    this.nodes = buildLayout(texts, {
      isMac,
      zoomBy: (factor) => this.map.zoom(factor, undefined, { isGlide: true }),
      zoomAll: () => this.map.showAll(),
      goTo: (section) => this.goTo(section),
      show: does.show,
      dismiss: () => this.hideNotice(),
    });
    this.grid = new AccessibleGrid({ model, texts, does: { ...does, focus: (seat) => this.#onFocus(seat) } });
    this.list = new ListView({ model, texts, does });
    this.legend = new PriceLegend({ model, texts, onFilter: () => this.#onFilter() });
    this.best = new BestAvailableForm({ model, texts, onPick: does.pickBest, countMax: does.countMax });
    this.pools = new PoolCounters({ model, texts, onUnits: does.setUnits });
    this.node = assemble(this.nodes, texts, this);
    this.map = new MapView({
      canvases: [this.nodes.seatsCanvas, this.nodes.marksCanvas],
      model,
      texts,
      onMove: () => this.#onMove(),
    });
    for (const node of [this.best.node, this.legend.node, this.nodes.sections, ...this.nodes.views]) node.hidden = true;
    this.#listen();
  }

  #listen() {
    const { map } = this.nodes;
    new Gestures(map, {
      canPan: () => !this.map.isWhole,
      pan: (dx, dy) => this.map.pan(dx, dy),
      zoom: (factor, pixel) => this.map.zoom(factor, pixel),
      tap: (pixel) => this.#tap(pixel),
      point: (pixel) => this.#point(pixel),
      hint: (isShown) => (this.nodes.hint.hidden = !isShown),
    });
    map.addEventListener("keydown", (event) => this.#onKey(event));
    for (const name of ["focus", "pointerdown"]) this.nodes.sections.addEventListener(name, () => this.#listSections());
  }

  // ---- showing

  /** After a new size; nothing is drawn while the element is hidden. */
  resize() {
    const { map } = this.nodes;
    const { left, right, top, bottom } = this.model.plan.box;
    // As high as the plan is at this width; the style sheet has the bounds.
    const height = (map.clientWidth * (bottom - top)) / (right - left) + PLAN_MARGIN_PX;
    map.style.setProperty("--_plan-height", `${Math.round(height)}px`);
    this.map.resize(map.clientWidth, map.clientHeight);
  }

  /** After a new map, language or theme: everything anew. */
  renderAll({ isNewPlan = true } = {}) {
    const { model, nodes } = this;
    const hasSeats = model.count > 0;
    const isList = this.view === "list";
    nodes.state.hidden = true;
    nodes.map.hidden = isList || !hasSeats;
    nodes.sections.hidden = model.plan.sections.length < 2;
    for (const button of nodes.views) button.hidden = !hasSeats;
    this.readTheme();
    this.best.render(this.does.money());
    this.pools.render(this.does.money());
    this.#listSections();
    if (isNewPlan) {
      this.grid.reset();
      this.list.enter(0);
      this.resize();
      this.map.showAll({ isCalm: true });
    } else {
      this.grid.refresh();
      this.list.render();
    }
    this.map.draw();
  }

  readTheme() {
    this.theme = readTheme(this.host);
    this.map.renderer.money = this.does.money();
    this.map.setTheme(this.theme);
    this.legend.render(this.theme, this.does.money());
    this.#shown = "";
    this.#showSigns();
  }

  /** These seats have changed. */
  update(seats) {
    this.grid.update(seats);
    this.list.update(seats);
    this.map.drawSomeSoon(seats);
    if (seats.includes(this.#tipped)) this.nodes.tip.textContent = this.does.tip(this.#tipped);
    this.pools.render(this.does.money());
    this.#frame ||= requestAnimationFrame(() => this.#showSigns());
  }

  #showSigns() {
    this.#frame = 0;
    const seen = new Set();
    for (let at = 0; at < this.model.count; at++) seen.add(this.model.lookOf(at));
    const shown = [...seen].sort().join(" ");
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.nodes.signs.replaceChildren(...signList(this.model, this.theme, this.texts));
  }

  get view() {
    return this.list.node.hidden ? "map" : "list";
  }

  /** "map" or "list". */
  setView(name) {
    const isList = name === "list";
    this.list.node.hidden = !isList;
    this.nodes.map.hidden = isList || this.model.count === 0;
    for (const button of this.nodes.views) button.setAttribute("aria-pressed", String(button.dataset.view === name));
    this.list.render();
    this.#listSections();
    if (!isList) this.resize();
  }

  showLink(link) {
    this.nodes.link.dataset.link = link;
    this.nodes.link.textContent = this.texts[link];
  }

  showRefusal(words) {
    this.nodes.state.textContent = words;
    this.nodes.state.hidden = false;
  }

  /** Says it to screen readers. */
  say(words) {
    this.nodes.aloud.textContent = words;
  }

  /** Shows a message, read aloud too, with a button for each offer `{words, take}`. */
  notify(words, offers = []) {
    const { notice, noticeText, offers: place } = this.nodes;
    noticeText.textContent = words;
    place.replaceChildren(
      ...offers.map(({ words: name, seat, take }) => {
        const picture = seatPicture(this.theme, 0, this.model.levelOf[seat]);
        return el("button", { type: "button", click: take }, picture, name);
      }),
    );
    notice.hidden = false;
    this.say([words, ...offers.map(({ words: name }) => name)].join(" "));
  }

  hideNotice() {
    this.nodes.notice.hidden = true;
  }

  // ---- sections

  goTo(section) {
    if (this.view === "list") return this.list.enter(Math.max(0, section));
    if (section < 0) return this.map.showAll();
    return this.#enter(section);
  }

  #enter(section, point) {
    this.grid.enterSection(section);
    this.map.showSection(section, point);
    this.nodes.sections.value = section;
  }

  // Options are written when the list is about to open, not at every change.
  #listSections() {
    const { model, texts, nodes } = this;
    const isList = this.view === "list";
    const money = this.does.money();
    const options = model.plan.sections.map(({ name }, number) => {
      const price = model.priceFrom(number);
      const words = texts.sectionOption(name, price === null ? "" : texts.from(money.short(price)), model.free[number]);
      return el("option", { value: number }, words);
    });
    const { value } = nodes.sections;
    nodes.sections.replaceChildren(...(isList ? [] : [el("option", { value: -1 }, texts.wholeMap)]), ...options);
    nodes.sections.value = isList ? this.list.section : value || -1;
  }

  // ---- what the buyer does

  #tap(pixel) {
    const { map, model } = this;
    if (map.showsSeats && map.seatsReact) {
      const seat = map.seatAt(pixel);
      if (seat >= 0) this.does.toggle(seat);
      return;
    }
    const section = map.sectionAt(pixel);
    if (section < 0) return;
    this.#enter(section, map.planAt(pixel));
    const { name } = model.plan.sections[section];
    this.say(name ? this.texts.zoomedTo(name) : this.texts.tapAgain);
  }

  #point(pixel) {
    const { map } = this;
    const seat = pixel && map.showsSeats ? map.seatAt(pixel) : -1;
    const section = pixel && seat < 0 && !map.seatsReact ? map.sectionAt(pixel) : -1;
    this.nodes.map.classList.toggle("over-seat", seat >= 0 || section >= 0);
    map.mark({ hovered: seat, section: map.showsSeats ? -1 : section });
    this.#tip(seat >= 0 ? this.does.tip(seat) : "", seat >= 0 ? map.pixelOf(seat) : null, seat);
  }

  #tip(words, at, seat = -1) {
    const { tip, map } = this.nodes;
    this.#tipped = seat;
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const left = Math.min(Math.max(6, at.x - tip.offsetWidth / 2), map.clientWidth - tip.offsetWidth - 6);
    const room = TIP_OFFSET_PX + this.map.camera.scale / 2;
    const isAbove = at.y > tip.offsetHeight + room + 6;
    const top = isAbove ? at.y - tip.offsetHeight - room + 6 : at.y + room - 6;
    tip.style.transform = `translate(${left}px, ${top}px)`;
  }

  #onMove() {
    this.grid.move(this.map.camera);
    this.nodes.map.classList.toggle("zoomed", !this.map.isWhole);
    if (this.map.isWhole && this.view === "map") this.nodes.sections.value = -1;
    if (!this.nodes.tip.hidden) this.#tip("");
  }

  #onFocus(seat) {
    const isSeen = seat >= 0 && this.grid.node.contains(this.host.shadowRoot.activeElement);
    this.map.mark({ focused: isSeen ? seat : -1 });
    if (seat >= 0) this.map.reveal(seat);
    const isByKey = isSeen && this.host.shadowRoot.activeElement.matches(":focus-visible");
    if (isByKey) this.#tip(this.does.tip(seat), this.map.pixelOf(seat), seat);
    if (seat < 0) this.#tip("");
  }

  #onKey(event) {
    if (event.altKey) return;
    const isOnSeat = this.grid.node.contains(event.target);
    const seat = isOnSeat ? this.grid.seatFor(event) : null;
    if (seat !== null) this.grid.focusSeat(seat);
    else if (!this.#act(event, isOnSeat)) return;
    event.preventDefault();
  }

  // True if the key means something here.
  #act(event, isOnSeat) {
    const isAlone = !event.ctrlKey && !event.metaKey;
    if (isOnSeat && (event.key === " " || event.key === "Enter")) this.does.toggle(this.grid.active);
    else if (isAlone && "+=".includes(event.key)) this.map.zoom(ZOOM_STEP, undefined, { isGlide: true });
    else if (isAlone && event.key === "-") this.map.zoom(1 / ZOOM_STEP, undefined, { isGlide: true });
    else if ((isAlone && event.key === "0") || (event.key === "Escape" && !this.map.isWhole)) this.map.showAll();
    else return false;
    return true;
  }

  #onFilter() {
    this.legend.render(this.theme, this.does.money());
    this.grid.refresh();
    this.list.render();
    this.map.drawSoon();
    this.#showSigns();
    const shown = this.model.bytes.reduce((sum, byte) => sum + Number(!(byte & FILTERED)), 0);
    this.say(this.texts.seats(shown));
  }
}
