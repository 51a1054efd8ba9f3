"""The host as its worker sees it: processes, output, stacks. Does not import gRPC."""
