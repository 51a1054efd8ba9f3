"""The process side: an interpreter of the op stream."""
