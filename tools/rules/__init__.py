"""One module per family of house rules; a rule is a function from the tree to findings."""
