"""Looks at a decode and changes none: replays, plots, a page, memory, overhead."""
