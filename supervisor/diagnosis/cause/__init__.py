"""From hits to the one cause: candidates, rules, confidence."""
