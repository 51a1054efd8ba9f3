"""The `cuda` transport: copies by GPUs through CUDA IPC."""
