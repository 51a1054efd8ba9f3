"""Move memory straight from process to process, beside the control messages."""

__all__: list[str] = []
