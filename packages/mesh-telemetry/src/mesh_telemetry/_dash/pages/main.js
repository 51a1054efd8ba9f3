// The frame of the dashboard: navigation, connection state, and theme.

import { h, setChildren, setText } from "./dom.js";
import { clock } from "./format.js";
import { fetchTopic, lastReply, ping, storeToken, subscribe, takeTokenFromAddress, UnauthorizedError, UnreachableError } from "./requests.js";
import * as overview from "./overview.js";

const PAGES = ["overview", "topology", "explorer", "timeline", "steps", "logs", "sql", "stacks", "cases"];
const NAMES = { sql: "SQL" };
const RETRY_MS = 3000;
const LOAD_RETRY_MS = 1000;
const PING_MS = 3000;
const THEMES = ["auto", "light", "dark"];
const root = document.getElementById("page");
const connection = document.getElementById("connection");
const notice = document.getElementById("coverage");
const lost = document.getElementById("lost");
let close = () => {};
// When the last value arrived, in milliseconds since the epoch.
let received_ms = Date.now();
let retry = 0;
// Counts opened pages, so that a page knows whether it is still the open one.
let opened = 0;

function tabs(current) {
  setChildren(
    document.getElementById("tabs"),
    PAGES.map((name) => {
      const words = NAMES[name] ?? name[0].toUpperCase() + name.slice(1);
      return h("a", { href: `#/${name}`, "aria-current": name === current && "page" }, words);
    }),
  );
}

async function route() {
  const [name, words = ""] = location.hash.replace(/^#\//, "").split("?");
  const chosen = PAGES.includes(name) ? name : "overview";
  const mine = ++opened;
  clearTimeout(retry);
  close();
  close = () => {};
  tabs(chosen);
  document.title = `Mesh: ${chosen}`;
  delete document.body.dataset.ready;
  const module = chosen === "overview" ? overview : await import(`./${chosen}.js`).catch(() => null);
  // The user may have opened another page during the import.
  if (mine !== opened) return;
  if (!module) {
    showLost();
    return;
  }
  setChildren(root);
  root.className = chosen === "overview" ? "" : "fixed";
  close = module.open(root, pageOf(mine), new URLSearchParams(words)) ?? (() => {});
}

/** Returns what the frame provides to a page. */
function pageOf(mine) {
  const isOpen = () => mine === opened;
  const onUnauthorized = (error) => isOpen() && showTokenForm(error);
  const onError = (error) => {
    if (!isOpen()) return;
    showConnection("lost", error.message);
    if (error instanceof UnreachableError) showLost();
  };
  const showCoverage = (coverage) => {
    if (!isOpen()) return;
    received_ms = Date.now();
    lost.hidden = true;
    showConnection("live", "live");
    showMissingHosts(coverage);
  };
  return {
    isOpen,
    ready(name) {
      if (!isOpen()) return;
      document.body.dataset.ready = name;
      loadPages();
    },
    /** Subscribes to a topic; returns a function that ends the subscription. */
    subscribe(topic, wanted, show) {
      let isShown = false;
      return subscribe(topic, wanted, {
        onValue(value, coverage) {
          if (!isOpen()) return;
          isShown = true;
          showCoverage(coverage);
          show(value, coverage);
        },
        onError(error) {
          const last = isShown || !isOpen() || !(error instanceof UnreachableError) ? undefined : lastReply(topic, wanted);
          isShown ||= Boolean(last);
          if (last) show(last.value, last.coverage);
          onError(error);
        },
        onUnauthorized,
      });
    },
    /** Queries a topic once; returns undefined on an error, which the frame shows. */
    async fetch(topic, wanted = {}, show = () => {}) {
      try {
        const reply = await fetchTopic(topic, wanted);
        showCoverage(reply.coverage);
        if (!isOpen()) return undefined;
        show(reply.value, reply.coverage);
        return reply.value;
      } catch (error) {
        if (error instanceof UnauthorizedError) onUnauthorized(error);
        else {
          const last = error instanceof UnreachableError && isOpen() ? lastReply(topic, wanted) : undefined;
          if (last) show(last.value, last.coverage);
          // The caller shows the value first, because an empty page is replaced.
          setTimeout(() => onError(error));
          return last?.value;
        }
        return undefined;
      }
    },
    /** Queries what a page needs, again after each error; returns undefined if the page was closed first. */
    async load(topic, wanted = {}) {
      while (isOpen()) {
        const value = await this.fetch(topic, wanted);
        if (value) return value;
        await new Promise((go) => setTimeout(go, LOAD_RETRY_MS));
      }
      return undefined;
    },
    /** Stores the arguments of a page in the address without opening the page again. */
    setArguments(name, wanted) {
      const words = new URLSearchParams(wanted).toString();
      history.replaceState(null, "", `#/${name}${words && `?${words}`}`);
    },
  };
}

function showConnection(name, text) {
  connection.dataset.state = name;
  setText(connection, text);
}

/** Shows that the program does not respond; the page keeps the last state. */
function showLost() {
  lost.hidden = false;
  setText(lost, `The program has ended, or the connection to it is lost. This is the last state, received at ${clock(received_ms * 1000, 0)}.`);
  if (document.body.dataset.ready && document.body.dataset.ready !== "no-state") return;
  close();
  close = () => {};
  opened += 1;
  setChildren(root, h("p", { class: "empty" }, "There is no last state of this page, because it was not open while the program was running."));
  document.body.dataset.ready = "no-state";
  retry = setTimeout(route, RETRY_MS);
}

/** Detects the end of the program on pages that receive no values by themselves, such as SQL. */
function watch() {
  let isLost = false;
  setInterval(async () => {
    if (Date.now() - received_ms < PING_MS) return;
    try {
      await ping();
      if (isLost) lost.hidden = true;
      isLost = false;
    } catch (error) {
      isLost = error instanceof UnreachableError;
      if (isLost) showLost();
    }
  }, PING_MS);
}

/** Loads all pages in advance, so that they also open after the program has ended. */
function loadPages() {
  for (const name of PAGES) import(`./${name}.js`).catch(() => undefined);
}

function showMissingHosts(coverage) {
  notice.hidden = !coverage.failed.length;
  if (notice.hidden) return;
  const causes = coverage.failed.map((one) => `${one.host} (${one.cause})`);
  setText(notice, `${causes.length} of ${coverage.queried.length} hosts did not reply: ${causes.join(", ")}`);
}

/** Prompts for the token. */
function showTokenForm(error) {
  close();
  opened += 1;
  showConnection("lost", "not authorized");
  notice.hidden = true;
  root.className = "";
  const field = h("input", { type: "password", name: "token", "aria-label": "Token", autocomplete: "off" });
  const enter = (event) => {
    event.preventDefault();
    storeToken(field.value.trim());
    route();
  };
  setChildren(
    root,
    h(
      "form",
      { class: "panel token-form", onsubmit: enter },
      h("h1", {}, "The token is missing or invalid"),
      h("p", {}, "Open the URL that ", h("code", { class: "mono" }, "mesh dash"), " prints, or enter the token of the program."),
      h("p", { class: "muted" }, error.message),
      h("div", { class: "tools" }, field, h("button", { class: "main", type: "submit" }, "Submit")),
    ),
  );
  document.body.dataset.ready = "token-form";
  field.focus();
}

function theme() {
  const button = document.getElementById("theme");
  const show = (name) => {
    document.documentElement.dataset.theme = name;
    setText(button, `Theme: ${name}`);
    window.dispatchEvent(new Event("themechange"));
  };
  show(localStorage.getItem("mesh-theme") ?? "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("mesh-theme", next);
    show(next);
  });
}

takeTokenFromAddress();
theme();
watch();
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  root.focus();
});
window.addEventListener("hashchange", () => {
  takeTokenFromAddress();
  route();
});
route();
