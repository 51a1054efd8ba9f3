"""The control service of a host and its clients; only this package imports grpc and protobuf."""

__all__: list[str] = []
