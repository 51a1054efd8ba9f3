// The states of ranks: each has a sign and a colour, so that no state is shown by colour alone.

export const STATES = ["running", "waiting", "failed", "dead", "stopped"];

export const SIGNS = { running: "▶", waiting: "‖", failed: "✕", dead: "⊘", stopped: "■" };

/** The variable of the style sheet with the colour of each state. */
export const COLOURS = { running: "good", waiting: "warn", failed: "bad", dead: "bad", stopped: "rest" };
