"""Recording of the collectives of `torch.distributed` in a process."""
