"""The wording shown to users, in English and Chinese."""
