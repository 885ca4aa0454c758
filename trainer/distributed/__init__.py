"""Ranks: who started them, where each computes, how they meet, and what is split over them."""
