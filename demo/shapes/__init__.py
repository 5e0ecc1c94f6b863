"""Telling circles, squares, crosses and stripes apart in small noisy pictures."""
