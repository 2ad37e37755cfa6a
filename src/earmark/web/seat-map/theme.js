// The colours that the canvas draws with, read from the custom properties of the element.

import { LEVELS_MAX } from "./patterns.js";

const NAMES = {
  accent: "--_accent",
  background: "--_background",
  text: "--_text",
  quiet: "--_quiet",
  line: "--_line",
  section: "--_section",
  stage: "--_stage",
  stageEdge: "--_stage-edge",
  stageText: "--_stage-text",
  selected: "--_selected",
  onSelected: "--_on-selected",
  own: "--_own",
  onOwn: "--_on-own",
  off: "--_off",
  onOff: "--_on-off",
  focus: "--_focus",
};

/** `{accent, …, levels: [{fill, ink}], font}` as the element looks now. */
export function readTheme(element) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).trim();
  const theme = Object.fromEntries(Object.entries(NAMES).map(([name, property]) => [name, value(property)]));
  theme.font = style.fontFamily;
  theme.levels = Array.from({ length: LEVELS_MAX }, (_, at) => {
    const fill = value(`--_category-${at + 1}`);
    return { fill, ink: inkOn(fill) };
  });
  return theme;
}

// Black or white, which of the two is easier to read on a colour (relative luminance of WCAG 2).
function inkOn(colour) {
  const [red, green, blue] = rgbOf(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#16131a" : "#ffffff";
}

let probe = null;

function rgbOf(colour) {
  probe ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}
