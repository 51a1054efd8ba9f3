"""Recording of training steps: how long each takes, and how long it waits."""
