"""From folders to models and back; the only room that opens weight files."""
