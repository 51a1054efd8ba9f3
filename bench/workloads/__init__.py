"""One file a workload; each function takes a driver, a scale and a recorder."""
