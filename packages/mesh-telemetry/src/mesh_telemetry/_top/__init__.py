"""The command `mesh top`: looks at a running program, from another terminal."""
