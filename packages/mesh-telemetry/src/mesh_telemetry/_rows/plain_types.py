"""Plain forms of Arrow types, which are the only types that clients need to support."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["cast_batch", "plain_schema", "plain_table", "plain_type"]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionary, view or 64-bit offsets."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types and nullable columns."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns of `schema`, matched by position."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_table(table: pa.Table) -> pa.Table:
    """Return the table with plain types."""
    schema = plain_schema(table.schema)
    if table.schema.equals(schema):
        return table
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema) if columns else table
