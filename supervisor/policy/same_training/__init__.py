"""Whether a resumed attempt goes on with the same training: begin with `judge`."""
