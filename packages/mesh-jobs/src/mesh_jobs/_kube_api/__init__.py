"""Access to the Kubernetes API server: requests, watches, port forwarding."""
