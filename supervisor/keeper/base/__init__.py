"""What every other part of the keeper stands on: clocks, background work, the journal, requests, secrets."""
