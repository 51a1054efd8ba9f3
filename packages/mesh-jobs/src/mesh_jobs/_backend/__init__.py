"""The interface of backends: their inputs and their results."""
