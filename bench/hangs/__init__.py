"""The same hang under other systems, to compare what they report; see the guide on hangs."""
