"""The Kubernetes operator, which reconciles MeshJob resources."""
