"""The command `mesh top`, which shows a running program in a terminal."""
