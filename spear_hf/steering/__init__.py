"""How a frozen network's representations are moved (Eqs. 3 to 5 and 10)."""
