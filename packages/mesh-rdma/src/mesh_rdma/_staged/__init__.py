"""The `staged` transport: device memory copied through page-locked host memory."""
