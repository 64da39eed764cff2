// The colours that dashboards name, as Grafana's dark theme shows them.

const NAMED = {
  green: "#73bf69", yellow: "#fade2a", red: "#f2495c", orange: "#ff9830", blue: "#5794f2", purple: "#b877d9",
  "dark-green": "#37872d", "dark-yellow": "#e0b400", "dark-red": "#c4162a", "dark-orange": "#fa6400", "dark-blue": "#1f60c4", "dark-purple": "#8f3bb8",
  "semi-dark-green": "#56a64b", "semi-dark-yellow": "#f2cc0c", "semi-dark-red": "#e02f44", "semi-dark-orange": "#ff780a", "semi-dark-blue": "#3274d9", "semi-dark-purple": "#a352cc",
  "light-green": "#96d98d", "light-yellow": "#ffee52", "light-red": "#ff7383", "light-orange": "#ffb357", "light-blue": "#8ab8ff", "light-purple": "#ca95e5",
  "super-light-green": "#c8f2c2", "super-light-yellow": "#fff899", "super-light-red": "#ffa6b0", "super-light-orange": "#ffcb7d", "super-light-blue": "#c0d8ff", "super-light-purple": "#deb6f2",
  text: "#ccccdc", transparent: "transparent", gray: "#8e8e99", grey: "#8e8e99",
};

const CLASSIC = [
  "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0",
  "#37872d", "#fade2a", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477",
  "#b7dbab", "#f4d598", "#70dbed", "#f9ba8f", "#f29191", "#82b5d8", "#e5a8e2", "#aea2e0",
];

const SCALES = {
  "continuous-GrYlRd": ["#73bf69", "#fade2a", "#f2495c"],
  "continuous-RdYlGr": ["#f2495c", "#fade2a", "#73bf69"],
  "continuous-BlYlRd": ["#5794f2", "#fade2a", "#f2495c"],
  "continuous-blues": ["#1b2a45", "#8ab8ff"],
  "continuous-reds": ["#3b1a20", "#ff7383"],
  "continuous-greens": ["#1a3320", "#96d98d"],
};

export const colorOf = (name) => NAMED[name] ?? name;
export const classic = (index) => CLASSIC[index % CLASSIC.length];
export const isScale = (mode) => mode in SCALES;

/** `share`: 0 to 1. */
export function onScale(mode, share) {
  const stops = SCALES[mode] ?? SCALES["continuous-GrYlRd"];
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  const mixed = channels(stops[below]).map((from, i) => Math.round(from + (channels(stops[below + 1])[i] - from) * (place - below)));
  return `rgb(${mixed.join(" ")})`;
}

export function withAlpha(color, alpha) {
  return color.startsWith("#") ? `rgb(${channels(color).join(" ")} / ${alpha})` : color.replace(/\)$/, ` / ${alpha})`);
}

/** Black or white, whichever is easier to read on `color`. */
export function readableOn(color) {
  if (!color.startsWith("#")) return "#ffffff";
  const [red, green, blue] = channels(color);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#111217" : "#ffffff";
}

const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
