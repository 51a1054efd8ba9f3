"""The process side: an interpreter of the instruction stream."""
