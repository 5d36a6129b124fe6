"""Random problems for the library, and an independent float64 reference that judges what it says of them."""
