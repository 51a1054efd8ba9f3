"""The control service of a host, and its callers; it alone imports grpc and protobuf."""

__all__: list[str] = []
