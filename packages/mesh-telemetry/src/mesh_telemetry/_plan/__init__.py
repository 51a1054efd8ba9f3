"""Taking a planned query apart: what hosts compute, and what is finished over their answers."""
