"""From the words after ``stoker run`` to a keeper that runs."""
