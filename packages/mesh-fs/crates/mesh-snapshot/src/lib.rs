//! What a tree of files was at one moment: metadata, and chunks by their hash.
