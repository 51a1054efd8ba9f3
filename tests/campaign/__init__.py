"""A campaign of failures during training on emulated hosts."""
