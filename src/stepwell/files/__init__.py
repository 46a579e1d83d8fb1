"""Files as the stores read and write them."""
