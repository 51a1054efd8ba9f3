// The frame of the dashboard: navigation, connection state, and theme.

import { h, put, say } from "./dom.js";
import { NotLetIn, ask, keepToken, live, remember } from "./wire.js";
import * as overview from "./overview.js";

const PAGES = ["overview", "topology", "explorer", "timeline", "logs", "sql", "stacks"];
const NAMES = { sql: "SQL" };
const THEMES = ["auto", "light", "dark"];
const root = document.getElementById("page");
const pulse = document.getElementById("pulse");
const notice = document.getElementById("coverage");
let leave = () => {};
let turn = 0;

function tabs(current) {
  put(
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
  const mine = ++turn;
  leave();
  leave = () => {};
  tabs(chosen);
  document.title = `Mesh: ${chosen}`;
  delete document.body.dataset.ready;
  const module = chosen === "overview" ? overview : await import(`./${chosen}.js`);
  // The user may have opened another page during the import.
  if (mine !== turn) return;
  put(root);
  root.className = chosen === "overview" ? "" : "fixed";
  leave = module.open(root, pageOf(mine), new URLSearchParams(words)) ?? (() => {});
}

/** Returns the interface of the frame for a page. */
function pageOf(mine) {
  const isOpen = () => mine === turn;
  const shut = (error) => isOpen() && gate(error);
  const lost = (text) => isOpen() && state("lost", text);
  const covered = (coverage) => {
    if (!isOpen()) return;
    state("live", "live");
    silent(coverage);
  };
  return {
    isOpen,
    ready(name) {
      if (isOpen()) document.body.dataset.ready = name;
    },
    /** Subscribes to a topic; returns a function that ends the subscription. */
    live(topic, wanted, show) {
      return live(topic, wanted, {
        value(value, coverage) {
          if (!isOpen()) return;
          covered(coverage);
          show(value, coverage);
        },
        lost,
        shut,
      });
    },
    /** Queries a topic once; returns undefined on an error, which the frame shows. */
    async ask(topic, wanted = {}, show = () => {}) {
      try {
        const said = await ask(topic, wanted);
        covered(said.coverage);
        if (!isOpen()) return undefined;
        show(said.value, said.coverage);
        return said.value;
      } catch (error) {
        if (error instanceof NotLetIn) shut(error);
        else lost(error.message);
        return undefined;
      }
    },
    /** Changes the address without opening the page again. */
    note(name, wanted) {
      const words = new URLSearchParams(wanted).toString();
      history.replaceState(null, "", `#/${name}${words && `?${words}`}`);
    },
  };
}

function state(name, text) {
  pulse.dataset.state = name;
  say(pulse, text);
}

function silent(coverage) {
  notice.hidden = !coverage.failed.length;
  if (notice.hidden) return;
  const causes = coverage.failed.map((one) => `${one.host} (${one.cause})`);
  say(notice, `Without ${causes.length} of ${coverage.asked.length} hosts: ${causes.join(", ")}`);
}

/** Prompts for the token. */
function gate(error) {
  leave();
  turn += 1;
  state("lost", "not authorized");
  notice.hidden = true;
  root.className = "";
  const field = h("input", { type: "password", name: "token", "aria-label": "Token", autocomplete: "off" });
  const enter = (event) => {
    event.preventDefault();
    remember(field.value.trim());
    route();
  };
  put(
    root,
    h(
      "form",
      { class: "panel gate", onsubmit: enter },
      h("h1", {}, "The token is missing or invalid"),
      h("p", {}, "Open the address that ", h("code", { class: "mono" }, "mesh dash"), " prints, or enter the token of the program."),
      h("p", { class: "muted" }, error.message),
      h("div", { class: "tools" }, field, h("button", { class: "main", type: "submit" }, "Enter")),
    ),
  );
  document.body.dataset.ready = "gate";
  field.focus();
}

function theme() {
  const button = document.getElementById("theme");
  const show = (name) => {
    document.documentElement.dataset.theme = name;
    say(button, `Theme: ${name}`);
    window.dispatchEvent(new Event("themechange"));
  };
  show(localStorage.getItem("mesh-theme") ?? "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("mesh-theme", next);
    show(next);
  });
}

keepToken();
theme();
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  root.focus();
});
window.addEventListener("hashchange", () => {
  keepToken();
  route();
});
route();
