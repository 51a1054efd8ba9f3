"""The workloads, one per file; each function takes a driver, a scale and a recorder."""
