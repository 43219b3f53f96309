"""What a turn computes: a pass over spans of the rows, the head in tiles, sums that float32 decides by."""
