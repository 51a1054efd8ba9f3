"""The buffer classes of the public API: handles, versioned buffers, batches and arena memory."""
