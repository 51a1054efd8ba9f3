"""The conformance tests of backends, and the programs that they run."""
