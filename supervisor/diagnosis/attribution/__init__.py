"""Whose line it is, and when: ranks, exits, who waited for whom."""
