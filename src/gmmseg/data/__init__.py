"""Files to tensors: data sets of labelled images, known by name."""
