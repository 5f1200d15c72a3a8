"""What is minimised on a stream, and for whom (Eqs. 6 to 9 and 11)."""
