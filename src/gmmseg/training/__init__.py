"""Batches to checkpoint: losses weighed, optimizer and EM stepped, state kept."""
