"""From an operation of torch to the plan that runs it."""
