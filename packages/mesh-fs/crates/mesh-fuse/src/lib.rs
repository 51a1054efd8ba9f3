//! The kernel's side of a file system: mounting, and answering what it asks.
