"""House rules, one module per family; a rule is a function from the tree to findings."""
