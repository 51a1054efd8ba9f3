// Formatting of numbers and times.

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : COUNT.format(value));

export const short = (value) => (Math.abs(value) < 10000 ? COUNT.format(value) : SHORT.format(value));

export function plural(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : /(s|sh)$/.test(word) ? "es" : "s"}`;
}

/** Formats a rate per second. */
export function rate(value) {
  return value === 0 || value >= 100 ? short(Math.round(value)) : value < 1 ? value.toFixed(2) : value.toFixed(1);
}

/** Returns the name of a program from its command line: the script or module, or the whole line. */
export function programName(line) {
  const words = line.split(" ");
  const script = words.find((word) => word.endsWith(".py"));
  if (script) return script.split("/").at(-1);
  const module = words[words.indexOf("-m") + 1];
  return words.includes("-m") && module ? module : line;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < names.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${names[at]}`;
}

/** Formats a duration in microseconds. */
export function duration(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${trimmed(us / 1e3)} ms`;
  if (us < 60e6) return `${trimmed(us / 1e6)} s`;
  const seconds = Math.floor(us / 1e6);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** Formats an age in whole seconds. */
export const age = (seconds) => (seconds < 60 ? `${seconds} s` : duration(seconds * 1e6));

/** Formats the time of day of microseconds since the epoch. */
export function clock(us, digits = 3) {
  const date = new Date(us / 1000);
  const two = (value) => String(value).padStart(2, "0");
  const whole = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return digits ? `${whole}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : whole;
}

/** Formats the date and time of day of microseconds since the epoch. */
export function date(us) {
  const day = new Date(us / 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${clock(us, 0)}`;
}

/** Formats the shape of a mesh, such as `gpus 8 × hosts 2`. */
export function shape(json) {
  try {
    return Object.entries(JSON.parse(json)).map(([name, size]) => `${name} ${size}`).join(" × ");
  } catch {
    return json;
  }
}

function trimmed(value) {
  return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value);
}
