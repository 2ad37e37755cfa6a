// The element's own styles, adopted by its shadow root: no style attribute and no style element, so a strict CSP holds.
// A page sets the properties that begin with --earmark; those that begin with --_ are the values in use.

const LIGHT = `
  --_accent: var(--earmark-accent, #0f6b5c);
  --_on-accent: var(--earmark-on-accent, #ffffff);
  --_background: var(--earmark-background, #f1efea);
  --_surface: var(--earmark-surface, #ffffff);
  --_text: var(--earmark-text, #1f1c24);
  --_quiet: var(--earmark-text-quiet, #5f5a67);
  --_line: var(--earmark-line, #d8d3c9);
  --_section: var(--earmark-section, #ffffff);
  --_stage: var(--earmark-stage, #4a4453);
  --_stage-edge: var(--earmark-stage-edge, #2c2833);
  --_stage-text: var(--earmark-stage-text, #fdf8ec);
  --_selected: var(--earmark-selected, #17141c);
  --_on-selected: var(--earmark-on-selected, #ffffff);
  --_own: var(--earmark-own, #f2b32b);
  --_on-own: var(--earmark-on-own, #2b1f00);
  --_off: var(--earmark-off, #e3dfd8);
  --_on-off: var(--earmark-on-off, #7d7783);
  --_bad: var(--earmark-bad, #a3261b);
  --_focus: var(--earmark-focus, #17141c);
  --_category-1: var(--earmark-category-1, #0b6bb0);
  --_category-2: var(--earmark-category-2, #c4500a);
  --_category-3: var(--earmark-category-3, #0a7f5d);
  --_category-4: var(--earmark-category-4, #a8457f);
  --_category-5: var(--earmark-category-5, #a87400);
  --_category-6: var(--earmark-category-6, #6a5acd);
  --_category-7: var(--earmark-category-7, #2b8ab5);
  --_category-8: var(--earmark-category-8, #6f7300);
`;

const DARK = `
  --_accent: var(--earmark-accent, #5bcdb2);
  --_on-accent: var(--earmark-on-accent, #06231d);
  --_background: var(--earmark-background, #121316);
  --_surface: var(--earmark-surface, #1d1f24);
  --_text: var(--earmark-text, #f0ede6);
  --_quiet: var(--earmark-text-quiet, #aaa5b0);
  --_line: var(--earmark-line, #3a3d45);
  --_section: var(--earmark-section, #202329);
  --_stage: var(--earmark-stage, #6b6377);
  --_stage-edge: var(--earmark-stage-edge, #443e4f);
  --_stage-text: var(--earmark-stage-text, #fdf8ec);
  --_selected: var(--earmark-selected, #ffffff);
  --_on-selected: var(--earmark-on-selected, #17141c);
  --_own: var(--earmark-own, #f2b32b);
  --_on-own: var(--earmark-on-own, #2b1f00);
  --_off: var(--earmark-off, #34373f);
  --_on-off: var(--earmark-on-off, #a09aa8);
  --_bad: var(--earmark-bad, #ff9b8e);
  --_focus: var(--earmark-focus, #ffffff);
  --_category-1: var(--earmark-category-1, #5aa9e6);
  --_category-2: var(--earmark-category-2, #f08c4a);
  --_category-3: var(--earmark-category-3, #3fc796);
  --_category-4: var(--earmark-category-4, #e08dbb);
  --_category-5: var(--earmark-category-5, #e0b040);
  --_category-6: var(--earmark-category-6, #a99cf5);
  --_category-7: var(--earmark-category-7, #7fd0f0);
  --_category-8: var(--earmark-category-8, #c2c64a);
`;

const TEXT = `
:host {
  ${LIGHT}
  display: block;
  container-type: inline-size;
  color: var(--_text);
  color-scheme: light;
  font: 0.9375rem/1.45 var(--earmark-font, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif);
}
:host([hidden]) { display: none; }
:host([theme="dark"]) { ${DARK} color-scheme: dark; }
@media (prefers-color-scheme: dark) {
  :host(:not([theme="light"])) { ${DARK} color-scheme: dark; }
}

*, *::before, *::after { box-sizing: border-box; }
[hidden] { display: none !important; }
p, ul, h3 { margin: 0; padding: 0; }
ul { list-style: none; }
.frame {
  overflow: clip;
  border: 1px solid var(--_line);
  border-radius: var(--earmark-radius, 16px);
  background: var(--_surface);
}
.aloud { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
:focus-visible { outline: 3px solid var(--_focus); outline-offset: 2px; }

button, select, input[type="number"] {
  min-height: 44px;
  min-width: 44px;
  padding: 0 0.85rem;
  border: 1px solid var(--_line);
  border-radius: calc(var(--earmark-radius, 16px) * 0.625);
  background: var(--_surface);
  color: var(--_text);
  font: inherit;
  font-weight: 550;
}
button { cursor: pointer; }
button:hover:enabled { border-color: var(--_quiet); }
button:disabled { color: var(--_on-off); cursor: not-allowed; }
button.main { border-color: var(--_accent); background: var(--_accent); color: var(--_on-accent); }
select { max-width: 100%; }

.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 0.5rem 0.75rem; padding: 0.75rem 0.9rem; }
.bar select { flex: 0 1 18rem; min-width: 0; }
.views { display: flex; }
.views button:first-child { border-radius: 10px 0 0 10px; }
.views button:last-child { margin-left: -1px; border-radius: 0 10px 10px 0; }
[aria-pressed="true"] { border-color: var(--_text); background: var(--_text); color: var(--_surface); }
.link { display: flex; align-items: center; gap: 0.45rem; margin-left: auto; color: var(--_quiet); font-size: 0.86rem; }
.link::before { content: ""; flex: none; width: 10px; height: 10px; border: 2px solid currentcolor; border-radius: 50%; }
.link[data-link="live"]::before { border-color: var(--_accent); background: var(--_accent); }
.link[data-link="lost"] { color: var(--_bad); }
.link[data-link="lost"]::before { border-radius: 0; background: currentcolor; }

.prices { display: flex; gap: 0.4rem; padding: 0 0.9rem 0.75rem; overflow-x: auto; scrollbar-width: thin; }
.prices button { display: flex; flex: none; align-items: center; gap: 0.5rem; padding-left: 0.55rem; border-radius: 99px; }
.prices small { color: inherit; font-size: 0.86em; font-weight: 450; }
.prices canvas, .signs canvas, .offers canvas { width: 22px; height: 22px; }

.map {
  position: relative;
  height: var(--earmark-map-height, clamp(21rem, var(--_plan-height, 62vh), clamp(20rem, 62vh, 42rem)));
  overflow: clip;
  border-block: 1px solid var(--_line);
  background: var(--_background);
  touch-action: pan-x pan-y;
  user-select: none;
  -webkit-user-select: none;
}
.map.zoomed { touch-action: none; cursor: grab; }
.map.zoomed:active { cursor: grabbing; }
.map.over-seat { cursor: pointer; }
.map > canvas { position: absolute; inset: 0; width: 100%; height: 100%; pointer-events: none; }
.grid { position: absolute; top: 0; left: 0; width: 0; height: 0; transform-origin: 0 0; pointer-events: none; }
.grid [role="gridcell"] { position: absolute; width: 32px; height: 32px; outline: 2px solid transparent; }
.zoom {
  position: absolute;
  right: 0.75rem;
  bottom: 0.75rem;
  display: grid;
  border-radius: 12px;
  box-shadow: 0 2px 10px rgb(0 0 0 / 18%);
}
.zoom button { width: 44px; padding: 0; border-radius: 0; font-size: 1.3rem; line-height: 1; }
.zoom button + button { margin-top: -1px; }
.zoom button:first-child { border-radius: 12px 12px 0 0; }
.zoom button:last-child { border-radius: 0 0 12px 12px; font-size: 1.05rem; }
.tip, .hint {
  position: absolute;
  padding: 0.35rem 0.65rem;
  border-radius: 8px;
  background: var(--_text);
  color: var(--_surface);
  font-size: 0.86rem;
  pointer-events: none;
}
.tip { top: 0; left: 0; max-width: 16rem; white-space: pre-line; }
.hint { top: 50%; left: 50%; transform: translate(-50%, -50%); font-size: 1rem; }
.state { display: grid; place-content: center; min-height: 12rem; padding: 1rem; color: var(--_quiet); text-align: center; }

.body { position: relative; }
.notice {
  position: absolute;
  inset: 0.6rem 0.6rem auto;
  z-index: 2;
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 0.4rem 0.75rem;
  width: fit-content;
  max-width: calc(100% - 1.2rem);
  margin-inline: auto;
  padding: 0.4rem 0.4rem 0.4rem 0.9rem;
  border: 1px solid var(--_line);
  border-left: 5px solid var(--_own);
  border-radius: calc(var(--earmark-radius, 16px) * 0.625);
  background: var(--_surface);
  box-shadow: 0 4px 18px rgb(0 0 0 / 22%);
}
.offers { display: flex; flex-wrap: wrap; gap: 0.4rem; }
.offers:empty { display: none; }
.offers button { display: flex; align-items: center; gap: 0.5rem; padding-left: 0.6rem; }
.notice .dismiss { margin-left: auto; padding: 0; border-color: transparent; font-size: 1.3rem; }

.list { max-height: var(--earmark-map-height, clamp(20rem, 62vh, 42rem)); overflow: auto; border-block: 1px solid var(--_line); }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding: 0.6rem 0.9rem; font-weight: 650; text-align: start; }
th { position: sticky; top: 0; z-index: 1; background: var(--_surface); text-align: start; }
th, td { padding: 0.2rem 0.9rem; border-bottom: 1px solid var(--_line); }
td:first-child { width: 44px; padding: 0 0 0 0.9rem; }
tbody tr { height: 44px; }
tbody tr:has(input:enabled) { cursor: pointer; }
tbody tr:has(input:enabled):hover, tbody tr:has(:checked) { background: var(--_background); }
tbody tr:has(input:disabled) { color: var(--_quiet); }
input[type="checkbox"] { width: 24px; height: 24px; margin: 10px 0; accent-color: var(--_accent); }
.more { margin: 0.75rem 0.9rem; }

.below { display: grid; gap: 0.9rem; padding: 0.9rem; }
.best { display: flex; flex-wrap: wrap; align-items: center; gap: 0.5rem; }
.best h3, .pools h3 { font-size: 1rem; }
.best h3 { margin-right: 0.4rem; }
.stepper { display: flex; }
.stepper button { padding: 0; font-size: 1.2rem; }
.stepper input { width: 3.6rem; min-width: 0; padding: 0; border-inline: 0; border-radius: 0; text-align: center; appearance: textfield; }
.stepper input::-webkit-inner-spin-button { display: none; }
.stepper button:first-child { border-radius: 10px 0 0 10px; }
.stepper button:last-child { border-radius: 0 10px 10px 0; }
.pools li { display: flex; flex-wrap: wrap; align-items: center; gap: 0.4rem 1rem; padding-block: 0.6rem; }
.pools li + li { border-top: 1px solid var(--_line); }
.pools .words { display: flex; flex: 1 1 12rem; flex-wrap: wrap; gap: 0 0.75rem; }
.pools .quiet { color: var(--_quiet); }
.pools ul { max-width: 46rem; }
.meter { flex: 1 0 100%; height: 6px; overflow: hidden; border-radius: 99px; background: var(--_off); }
.fill { height: 100%; border-radius: inherit; background: var(--_accent); }
.signs { display: flex; flex-wrap: wrap; gap: 0.3rem 1rem; color: var(--_quiet); font-size: 0.86rem; }
.signs li { display: flex; align-items: center; gap: 0.4rem; }

@container (max-width: 34rem) {
  .zoom { right: 0.5rem; bottom: 0.5rem; grid-auto-flow: column; }
  .zoom button + button { margin: 0 0 0 -1px; }
  .zoom button:first-child { border-radius: 12px 0 0 12px; }
  .zoom button:last-child { border-radius: 0 12px 12px 0; }
  .bar select { flex: 1 1 100%; order: 3; }
  .best > * { flex: 0 1 auto; }
  .best h3 { flex: 1 0 100%; }
  .best select { flex: 1 1 8rem; }
  .best .main { flex: 1 0 100%; }
  th, td { padding-inline: 0.4rem; }
  th:nth-child(4), td:nth-child(4) { display: none; }
}
@media (prefers-reduced-motion: no-preference) {
  .notice { animation: arrive 0.2s ease-out; }
  @keyframes arrive { from { opacity: 0; } }
}
`;

export const styles = new CSSStyleSheet();
styles.replaceSync(TEXT);
