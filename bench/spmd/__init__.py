"""The same training without a controller: one program per process, started by torchrun."""
