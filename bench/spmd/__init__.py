"""The same training without a controller: one program in each process, begun by torchrun."""
