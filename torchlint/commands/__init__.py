"""What the commands do, without printing: each takes frozen data and returns what to print and the status."""
