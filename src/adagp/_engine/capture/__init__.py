"""What is captured of a forward and a backward pass while they run."""
