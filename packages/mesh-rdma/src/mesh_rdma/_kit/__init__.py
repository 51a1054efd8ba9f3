"""The conformance tests that every transport must pass."""
