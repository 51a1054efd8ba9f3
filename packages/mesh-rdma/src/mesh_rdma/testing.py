"""The conformance kit that every RDMA transport must pass."""

__all__: list[str] = []
