"""Shell scripts that start a training: their text to a tree, and the tree to the command that they start. Nothing is run."""
