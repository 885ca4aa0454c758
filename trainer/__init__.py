"""A small, serious GPT trainer: stdlib, torch and numpy only."""
