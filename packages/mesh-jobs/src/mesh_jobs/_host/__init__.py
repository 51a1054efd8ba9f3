"""The view of a worker on its host: processes, output and stacks. Does not import gRPC."""
