"""Buffers as programs use them: handles, versioned buffers, batches and arena memory."""
