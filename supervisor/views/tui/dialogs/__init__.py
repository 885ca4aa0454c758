"""Dialogs that open over a screen and ask something."""
