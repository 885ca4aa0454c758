"""Whether a resumed attempt continues with the same training: begin with `judge`."""
