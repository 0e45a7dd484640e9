"""Built-in packs: one folder a pack, data only."""
